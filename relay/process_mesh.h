// The mesh as one process takes part in it: what it knows, how it learns that, and whether it
// relays for others.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "relay/link_sockets.h"
#include "relay/mesh_routes.h"
#include "relay/provider_hops.h"
#include "relay/shape.h"
#include "relay/ticket.h"
#include "runtime/base/config.h"
#include "runtime/base/key_file.h"
#include "runtime/engine/engine.h"
#include "runtime/fabric/provider.h"

namespace nccl_ha::relay {

class MeshClient;

/// Owner's thread, unless stated otherwise.
class ProcessMesh {
 public:
  enum class Part : uint8_t {
    none,      ///< cables only
    attached,  ///< another process of this host knows, and relays
    inlined,   ///< this one does
  };

  /// Decides which part this process takes (NCCL_MESH_RELAY): none without
  /// NCCL_MESH_ENABLE_RELAY, where HA_NCCL_FABRIC forces another kind of paths, and with `auto`
  /// where nobody on this host relays.  Asks that one, which takes milliseconds, and two seconds
  /// where there is no answer.
  static Result<std::unique_ptr<ProcessMesh>> make(const Config& config,
                                                   const std::vector<fabric::NetInterface>& all);
  ProcessMesh(const ProcessMesh&) = delete;
  ProcessMesh& operator=(const ProcessMesh&) = delete;

  Part part() const { return part_; }
  bool takes_part() const { return part_ != Part::none; }
  /// Those with cables to neighbours.
  const std::vector<fabric::NetInterface>& interfaces() const { return own_; }
  /// For Provider::Sources::kinds; empty without a part.
  std::vector<fabric::Provider::Kind> kinds() const;
  /// The engine has started; it ends before this and before the provider.
  Result<void> begin(Engine& engine, fabric::Provider& provider, Instant now);
  /// Before the engine ends.  Where this process relays, all hosts hear that no way leads through
  /// here any more, and paths of others end one after the other: returns when none is left, after
  /// `limit` at the latest.  Else at once.
  void leave(Engine& engine, Duration limit);

  enum class Reach : uint8_t {
    cable,    ///< or it is this host, or whoever reads addresses knows better
    relays,   ///< no cable leads there
    unknown,  ///< for now
  };
  /// How a peer with these addresses is reached.  Where NCCL_MESH_TOPOLOGY names another shape than
  /// the hosts have, the log says what is missing, again when that has changed.  Any thread.
  Reach reach(const std::vector<IpAddress>& addresses, Instant now) const;
  /// Over so many ways at once load goes to a peer that is reached over relays.  Any thread.
  size_t ways(const std::vector<IpAddress>& addresses) const { return routes_->ways(addresses); }
  /// For how long it makes sense to wait where that is unknown.  Any thread.
  Duration patience(const std::vector<IpAddress>& addresses) const;
  /// A neighbour answers at that link-local address on the interface that is its scope.  Any
  /// thread.
  bool hears(const sockaddr* peer) const;
  /// The hosts that are known, for messages.  Any thread.
  std::string known_hosts() const;

 private:
  ProcessMesh(const Config& config, std::vector<fabric::NetInterface> own);
  Result<void> choose_part();
  void ask_for_ticket();
  Result<void> use_file(const std::vector<fabric::NetInterface>& all);
  Result<void> open_links(bool* port_taken);
  using Adopt = std::function<Result<ActorId>(std::unique_ptr<Actor>)>;
  Result<void> make_node(fabric::Provider& provider, Worker& worker, const Adopt& adopt);
  std::unique_ptr<MeshClient> make_client(fabric::Provider& provider, Worker& worker);
  // A relay node begins on this host while this process relays.  Worker's thread.
  bool hand_over(Worker& worker);
  void give_place(fabric::Provider& provider, Worker& worker);  ///< with the lock held
  void on_drained(fabric::Provider& provider, Worker& worker);
  void tell_shape(Instant now) const;
  bool shares_subnet(const std::vector<IpAddress>& addresses) const;

  const Config config_;
  std::shared_ptr<KeyFile> key_;  ///< null: anybody may join, or the host's node vouches
  std::shared_ptr<Tickets> tickets_ = std::make_shared<Tickets>();  ///< for want of key_
  Part part_ = Part::none;
  std::vector<fabric::NetInterface> own_;  ///< those with cables
  bool fixed_ = false;                     ///< NCCL_MESH_TOPOLOGY_FILE: nothing is discovered
  std::shared_ptr<TopologyBoard> board_ = std::make_shared<TopologyBoard>();
  std::shared_ptr<MeshRoutes> routes_;
  std::unique_ptr<LinkSockets> links_;  ///< until discovery has them
  std::unique_ptr<ProviderHops> hops_;
  Instant began_{};
  std::optional<Shape> expected_;  ///< NCCL_MESH_TOPOLOGY
  mutable std::mutex told_mutex_;
  mutable std::shared_ptr<const MeshView> judged_;
  mutable std::string told_;  ///< what is wrong with the shape, as the log has it already
  std::mutex node_mutex_;     ///< of what follows
  std::condition_variable node_drained_;
  std::optional<ActorId> node_;       ///< the relay node of this process
  bool drained_ = false;              ///< it has no path of others any more
  std::optional<ActorId> discovery_;  ///< of this process
  bool handing_over_ = false;         ///< to a node that has begun
};

}  // namespace nccl_ha::relay
