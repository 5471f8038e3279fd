// Discovery on a worker: its timer, its sockets, and the interfaces of this host as they change.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "relay/job_keys.h"
#include "relay/mesh_links.h"
#include "relay/topology_board.h"
#include "runtime/base/key_file.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/streams/stream.h"

namespace nccl_ha::relay {

/// Enough for one turn.
inline constexpr size_t discovery_packets_per_turn = 64;

class DiscoveryActor final : public Actor,
                             private FdWatchOwner,
                             private LinkWatchOwner,
                             private MeshLinks::Sink {
 public:
  struct Options {
    Discovery::Identity identity;
    Discovery::Timing timing;
    std::unique_ptr<MeshLinks> links;
    /// Those with cables to neighbours, as they are now.  An error: those of before are still
    /// there.
    std::function<Result<std::vector<fabric::NetInterface>>()> interfaces;
    std::shared_ptr<TopologyBoard> board;
    std::shared_ptr<KeyFile> key;  ///< null: anybody on a cable is a neighbour, or by `job`
    /// Where there is no `key`: hosts of the same job are neighbours, or all where that is open.
    std::shared_ptr<const JobKeys> job;
    /// It looks (Discovery::Identity::looks), and from now on it takes part: once.
    std::function<void(Context& context)> on_takes_part;
    /// A relay node begins on this host and wants the port.  On the worker's thread.  True: it will
    /// have it; from then on this is not called any more, and nobody of this host is answered.
    /// Null: this one stays, as it is of a node.
    std::function<bool()> on_hand_over;
  };
  /// How often it looks at addresses and at the key file, whose changes nobody tells.
  static constexpr Duration look_apart = std::chrono::seconds(5);
  enum MessageKind : uint32_t {
    relays,  ///< arg 1: paths of others may lead through this host from now on; 0: they may not
    need,    ///< arg 1: a peer is out of reach of this host; 0: none is any more
    leave,   ///< neighbours are told, the port is free at the end of the turn, and so is the actor
  };

  explicit DiscoveryActor(Options options) : options_(std::move(options)) {}
  ~DiscoveryActor() override;

  const char* name() const override { return "discovery"; }
  void start(Context& context) override;
  void on(const Message& message) override;
  void stop() override;
  void on_no_memory() override;

  /// Null before start().  Worker's thread.
  const Discovery* discovery() const { return discovery_ ? &*discovery_ : nullptr; }

 private:
  void on_readable(int fd) override;
  void on_link(const std::string& interface, bool up) override;
  void on_packet(uint32_t interface, const fabric::SocketAddress& from, bool asked_here,
                 std::span<const std::byte> packet) override;
  void on_timer();
  void look_at_interfaces();
  void look_at_key();
  void use_job_keys();
  /// Does what is due, tells what has changed, and comes back in time.
  void go_on();
  void publish();
  void answer_askers();
  void tell_forged(uint32_t interface, const fabric::SocketAddress& from) const;

  Options options_;
  Context* context_ = nullptr;
  std::optional<Discovery> discovery_;
  std::vector<std::unique_ptr<FdWatch>> watches_;
  std::unique_ptr<LinkWatch> link_watch_;
  std::vector<fabric::NetInterface> own_;
  Timer timer_;
  Instant look_due_{};
  bool handing_over_ = false;
  /// Processes of this host that have asked in this turn: each gets one answer, the same for all.
  std::vector<fabric::SocketAddress> askers_;
  bool looked_ = false;                         ///< as published
  bool rested_ = false;                         ///< as published
  uint64_t published_ = UINT64_MAX;             ///< revision of what all hosts say
  uint64_t neighbours_published_ = UINT64_MAX;  ///< and of the neighbours
};

}  // namespace nccl_ha::relay
