// Which hosts a path to another one leads through.
//
// A route is named whole by the host where it begins (source route), and no host is on it twice: so
// nothing goes round in a circle, also while hosts do not know the same of each other.  Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "relay/topology.h"

namespace nccl_ha::relay {

struct Route {
  std::vector<NodeId> nodes;  ///< both ends and all in between
  uint64_t speed_mbps = 0;    ///< of its slowest hop, all cables of it together; 0: unknown
  size_t hops() const { return nodes.size() - 1; }
  size_t relays() const { return nodes.size() - 2; }
  bool operator==(const Route&) const = default;
};

struct RouteOptions {
  bool relay = true;      ///< HA_NCCL_MESH_ENABLE_RELAY; false: direct ones only
  size_t relays_max = 4;  ///< HA_NCCL_MESH_MAX_HOPS: hosts in between
  /// HA_NCCL_MESH_RING_SPLIT: equally short routes share the load, as both ways round a ring do.
  bool split = true;
  /// HA_NCCL_MESH_RING_DETOUR: the way that has no host in common with the shortest shares it too,
  /// if it is at most so many hops longer.
  size_t detour_max = 0;
};
/// So many equally short routes are kept, those over the lowest ids.
inline constexpr size_t equal_routes_max = 8;

struct RouteEntry {
  NodeId destination{};
  size_t distance =
      0;  ///< hops of the shortest, also if there are too many; 0: no cable leads there
  /// The shortest first, then those of equal length, then one over other hosts if there is any
  /// (which takes over when the others fail).  None has too many hops.
  std::vector<Route> routes;
  size_t sharing = 0;  ///< the first so many carry load
  bool direct() const { return !routes.empty() && routes.front().hops() == 1; }
};

/// Unchangeable; any thread.
class RouteTable {
 public:
  /// From `self`; empty where the topology does not know it.
  static RouteTable make(const Topology& topology, NodeId self, const RouteOptions& options);

  const std::vector<RouteEntry>& entries() const { return entries_; }  ///< ascending by id
  /// Null: nobody knows that host.
  const RouteEntry* find(NodeId destination) const;

 private:
  std::vector<RouteEntry> entries_;
};

/// What each of the routes that share the load gets, in parts per 1024, which add up to that: by
/// bandwidth where it is known of all, and less for more hops, as each of them takes from a cable.
std::vector<uint32_t> shares(const RouteEntry& entry);

/// Gives one connection after the other a route, in proportion to their shares and well mixed
/// (smooth weighted round robin).
class RouteRotation {
 public:
  /// An index into the routes of an entry with such shares, which must not be empty.
  size_t next(std::span<const uint32_t> shares);

 private:
  std::vector<int64_t> credit_;
};

/// Whether a host may take part in a path with this route: no host on it twice, not too many, and
/// `self` at place `at` of it.  What comes from outside has to pass it.
Result<void> check_route(std::span<const NodeId> nodes, size_t at, NodeId self, size_t relays_max);

}  // namespace nccl_ha::relay
