// Neighbours and routes as discovery knows them at the moment.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "relay/hop_source.h"
#include "relay/routes.h"
#include "relay/topology_board.h"

namespace nccl_ha::relay {

/// Any thread.
class MeshRoutes final : public NextHops {
 public:
  /// So many connections' ways are remembered; one that is forgotten begins anew.
  static constexpr size_t connections_max = 4096;

  /// Relay nodes of all hosts listen on `port`.
  MeshRoutes(std::shared_ptr<const TopologyBoard> board, const RouteOptions& options, uint16_t port)
      : board_(std::move(board)), options_(options), port_(port) {}

  /// Several cables to one neighbour take turns.
  std::optional<NextHop> find(NodeId neighbour) const override;
  /// By an address from which discovery hears it, or one that it tells of itself.
  bool is_at(NodeId neighbour, const IpAddress& from) const override;
  bool lives(NodeId neighbour, uint32_t incarnation) const override;
  std::optional<NodeId> self() const override;
  std::string name_of(NodeId node) const override;
  bool any() const override;
  /// A connection's first way by the routes' shares (RouteRotation), each further one over as few
  /// hosts of the others as possible.  A way keeps to its first host as long as a route begins
  /// there; else it takes one that none of the others keeps to.  A route that was refused comes
  /// again when all the others were, the oldest first; one that is none meanwhile is forgotten.
  std::vector<NodeId> relays_to(NodeId destination, const Way& way) override;
  void refused(NodeId destination, const Way& way) override;

  enum class Reach : uint8_t {
    unknown,  ///< nobody has told of such a host
    none,     ///< known, and nothing leads there
    itself,   ///< this host
    cable,
    relays,
  };
  /// How the host that has one of these addresses is reached.
  Reach reach(const std::vector<IpAddress>& addresses);
  /// Over so many ways, each with a first host of its own, load goes at once to the host that has
  /// one of these addresses: at most ways_max, and 1 where a cable leads there.
  size_t ways(const std::vector<IpAddress>& addresses);

 private:
  struct Taken {
    std::vector<NodeId> relays;                ///< the hosts in between; empty: unused
    std::vector<std::vector<NodeId>> refused;  ///< the same of others, the oldest first
  };
  using Ways = std::array<Taken, ways_max>;
  using Key = std::pair<uint64_t, NodeId>;  ///< connection, destination
  void look();
  const TopologyNode* host_at(const std::vector<IpAddress>& addresses) const;
  Ways& ways_of(const Key& key);
  const Route* choose(const RouteEntry& entry, const Ways& ways, size_t number);

  std::shared_ptr<const TopologyBoard> board_;
  RouteOptions options_;
  uint16_t port_;
  mutable std::atomic<size_t> turns_{0};
  std::mutex mutex_;
  std::shared_ptr<const MeshView> view_;  ///< of which table_ is
  RouteTable table_;
  std::map<NodeId, RouteRotation> rotations_;  ///< by destination
  std::map<Key, Ways> ways_;
  std::deque<Key> oldest_;  ///< of ways_
};

}  // namespace nccl_ha::relay
