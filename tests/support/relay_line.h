// Hosts in a line on virtual time, each with a relay node but the two at the ends: what tests of
// relayed paths need.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "relay/relay_node.h"
#include "relay/relay_path.h"
#include "tests/rig/sim/world.h"

namespace nccl_ha::test {

/// Host i has a cable to host i + 1, and each cable is a network of its own.
class RelayLine {
 public:
  struct Options {
    uint64_t seed = 1;
    size_t relays = 1;
    double loss = 0;  ///< of datagrams: dropped, doubled and out of order, each
    relay::RelayOptions relay;
    uint32_t chunk_bytes = 65536;  ///< of the ends, as the next two
    uint16_t slots = 16;
    uint16_t last_slots = 0;  ///< of the last host; 0: as the others
    uint32_t last_chunk_bytes = 0;
    size_t relays_max = 4;
    /// Of the two ends and of the relays.
    std::shared_ptr<KeyFile> keys[2];
    /// Of the process at the first and at the last host, which has no key then.
    std::shared_ptr<relay::Tickets> tickets[2];
    /// Of the two ends and of the relays, as neighbours hear it.
    std::shared_ptr<relay::JobKeys> jobs[2];
    uint32_t incarnation = 0;        ///< of each host's node, also where that is all there is of it
    std::function<void(bool)> tell;  ///< of all nodes
    /// Of a host's cables, from the one to the host before it on, so many are RDMA NICs'; empty:
    /// none.
    std::function<size_t(size_t host)> rdma;
    Config config = quick_config();
  };
  /// Gives up on the silent within seconds.
  static Config quick_config();
  explicit RelayLine(const Options& options);
  ~RelayLine();
  RelayLine(const RelayLine&) = delete;
  RelayLine& operator=(const RelayLine&) = delete;

  size_t hosts() const { return hosts_.size(); }
  sim::World& world() { return world_; }
  sim::Process& process(size_t host) { return *hosts_[host].process; }
  Context& context(size_t host);
  /// Of a host between the ends that was not killed.
  relay::RelayNode& node(size_t host) { return *hosts_[host].node; }
  void drain(size_t host, uint32_t limit_ms);
  relay::HopSource& hops(size_t host) { return *hosts_[host].hops; }
  relay::NextHops& next(size_t host) { return *hosts_[host].next; }
  static relay::NodeId id(size_t host) { return relay::NodeId{host + 1}; }

  /// At the first or the last host, over all in between.  To be destroyed before the line.
  /// `slots`: that many rather than those of all ends.
  Result<std::unique_ptr<fabric::Path>> make_path(size_t host, fabric::PathOptions options,
                                                  fabric::PathOwner* owner,
                                                  std::optional<uint16_t> slots = std::nullopt);
  /// Over what the options name.
  Result<std::unique_ptr<fabric::Path>> make_path_over(
      size_t host, const fabric::PathOptions& options, fabric::PathOwner* owner,
      std::optional<uint16_t> slots = std::nullopt);
  /// What a path of that host takes from now on where nobody names its route.
  void tell_way(size_t host, std::vector<relay::NodeId> relays) { ways_[host] = std::move(relays); }
  /// So often a path of that host has refused what it was told.
  size_t refused(size_t host) const { return hosts_[host].refused; }
  void cut(size_t cable, bool cut = true);
  /// The same, and both hosts hear of it.
  void unplug(size_t cable, bool unplugged = true);
  void cut_all();
  /// This part of the packets is lost in both directions, and nothing of streams.
  void drop(size_t cable, double part);
  /// Both directions carry so much and no more.
  void limit(size_t cable, uint64_t bytes_per_second);
  void kill(size_t host);

 private:
  /// The hosts beside it.
  class Neighbours;
  struct Host {
    sim::Process* process = nullptr;
    std::unique_ptr<relay::HopSource> hops;
    std::unique_ptr<relay::NextHops> next;
    size_t refused = 0;                ///< ways that next has told
    relay::RelayNode* node = nullptr;  ///< its engine's; none at the ends, or after kill()
    uint16_t port = 1;                 ///< where a killed one listened
    ActorId actor;
  };
  static sim::Ip address(size_t host, size_t cable);
  void set_links(size_t cable, const sim::Link& link);

  Options options_;
  std::map<size_t, std::vector<relay::NodeId>> ways_;  ///< by the host where they begin
  std::vector<Host> hosts_;                            // actors and paths use what is in it
  sim::World world_;
};

}  // namespace nccl_ha::test
