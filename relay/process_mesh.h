// The mesh as one process takes part in it: what it knows, how it learns that, and whether it
// relays for others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "relay/first_told.h"
#include "relay/job_keys.h"
#include "relay/link_sockets.h"
#include "relay/mesh_routes.h"
#include "relay/provider_hops.h"
#include "relay/routed_peers.h"
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

  /// Decides which part this process takes (HA_NCCL_MESH_RELAY): none without
  /// HA_NCCL_MESH_ENABLE_RELAY, where HA_NCCL_FABRIC forces another kind of paths, and with `auto`
  /// where nobody on this host relays and `job` names no communicator.  Asks whoever has the port,
  /// which takes milliseconds, and 50 where there is no answer.
  static Result<std::unique_ptr<ProcessMesh>> make(
      const Config& config, const std::vector<fabric::NetInterface>& all,
      std::shared_ptr<JobKeys> job = std::make_shared<JobKeys>());
  ProcessMesh(const ProcessMesh&) = delete;
  ProcessMesh& operator=(const ProcessMesh&) = delete;

  Part part() const { return part_; }
  bool takes_part() const { return part_ != Part::none; }
  /// Nobody told this process to take part: it does where it hears a mesh, or needs one.
  bool automatic() const { return automatic_; }
  /// It takes part, and there is a mesh as far as it knows.  Any thread.
  bool in_mesh() const { return takes_part() && (!automatic_ || routes_->any()); }
  /// Those with cables to neighbours.
  const std::vector<fabric::NetInterface>& interfaces() const { return own_; }
  /// For Provider::Sources::kinds; empty without a part.
  std::vector<fabric::Provider::Kind> kinds() const;
  /// The engine has started; it ends before this and before the provider.  From then on, where
  /// HA_NCCL_MESH_TOPOLOGY names another shape than the hosts have, the log says what is missing.
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
  /// How a peer with these addresses is reached; `waits`: unknown also where only relays are known
  /// for so short a time that a cable may be heard yet.  Any thread.
  Reach reach(const std::vector<IpAddress>& addresses, Instant now, bool waits = true) const;
  /// Over so many ways at once load goes to a peer that is reached over relays.  Any thread.
  size_t ways(const std::vector<IpAddress>& addresses) const { return routes_->ways(addresses); }
  /// For how long it makes sense to wait where that is unknown.  Any thread.
  Duration patience(const std::vector<IpAddress>& addresses, Instant now) const;
  /// A neighbour answers at that link-local address on the interface that is its scope.  Any
  /// thread.
  bool hears(const sockaddr* peer) const;
  /// Why no way leads to a peer with these addresses, as far as is known, and what to do.  Any
  /// thread.
  std::string why_no_way(const std::vector<IpAddress>& addresses) const;
  /// Data that leaves there goes over no cable of the mesh, but over a network for management.  Any
  /// thread.
  bool is_management(const sockaddr* own) const;
  /// A peer was looked for in vain: as long as no other one has been found so, nobody seeks any
  /// more.  Any thread.
  void give_up() const;
  /// Neither a network nor a route of this host's cables has one of these addresses.  Any thread.
  bool out_of_reach(const std::vector<IpAddress>& addresses) const;

 private:
  ProcessMesh(const Config& config, std::vector<fabric::NetInterface> own,
              std::shared_ptr<JobKeys> job);
  Result<void> choose_part();
  Result<void> attach(const MeshView* view);
  void ask_for_ticket();
  Result<void> use_file(const std::vector<fabric::NetInterface>& all);
  Result<void> open_links(bool* port_taken);
  using Adopt = std::function<Result<ActorId>(std::unique_ptr<Actor>)>;
  Result<void> make_speaker(fabric::Provider& provider, Worker& worker, const Adopt& adopt);
  Result<std::vector<fabric::NetInterface>> cables_now(const fabric::Provider& provider) const;
  Result<void> make_office(const Discovery::Identity& identity, const Adopt& adopt);
  Result<void> make_node(fabric::Provider& provider, Worker& worker, const Adopt& adopt);
  std::unique_ptr<MeshClient> make_client(fabric::Provider& provider, Worker& worker);
  // A relay node begins on this host while this process relays.  Worker's thread.
  bool hand_over(fabric::Provider& provider, Worker& worker);
  void give_place(fabric::Provider& provider, Worker& worker);  ///< with the lock held
  void on_drained(fabric::Provider& provider, Worker& worker);
  bool shares_subnet(const std::vector<IpAddress>& addresses) const;
  bool may_be_near(const std::vector<IpAddress>& addresses) const;
  bool is_this_host(const std::vector<IpAddress>& addresses) const;
  /// What callers' threads look for.
  struct Search {
    FirstTold told;                  ///< of peers that may be near
    std::atomic<bool> seeks{false};  ///< one that is out of reach
    std::atomic<Instant> since{Instant{}};
    std::atomic<bool> found{false};  ///< somebody over others
  };
  Reach reach_by_itself(const std::vector<IpAddress>& addresses) const;
  void seek() const;
  void say_need(bool needs) const;
  std::string heard() const;

  const Config config_;
  std::shared_ptr<KeyFile> key_;  ///< null: anybody may join, or the host's node vouches
  std::shared_ptr<Tickets> tickets_ = std::make_shared<Tickets>();  ///< for want of key_
  const std::shared_ptr<JobKeys> job_;                              ///< for want of both
  Part part_ = Part::none;
  bool automatic_ = false;
  std::vector<fabric::NetInterface> own_;  ///< those with cables
  bool fixed_ = false;                     ///< HA_NCCL_MESH_TOPOLOGY_FILE: nothing is discovered
  std::shared_ptr<TopologyBoard> board_ = std::make_shared<TopologyBoard>();
  std::shared_ptr<MeshRoutes> routes_;
  std::unique_ptr<LinkSockets> links_;  ///< until discovery has them
  std::unique_ptr<ProviderHops> hops_;
  Instant began_{};
  std::optional<Shape> expected_;  ///< HA_NCCL_MESH_TOPOLOGY
  mutable RoutedPeers routed_;
  mutable Search search_;
  mutable std::mutex node_mutex_;  ///< of what follows
  std::condition_variable node_drained_;
  Worker* worker_ = nullptr;          ///< while the engine runs
  std::optional<ActorId> node_;       ///< the relay node of this process
  bool drained_ = false;              ///< it has no path of others any more
  std::optional<ActorId> discovery_;  ///< of this process
  std::optional<ActorId> client_;     ///< who asks another one instead
  std::optional<ActorId> office_;     ///< for other processes of this host
  bool handing_over_ = false;         ///< to a node that has begun
};

}  // namespace nccl_ha::relay
