#include "relay/routes.h"

#include <fmt/format.h>

#include <algorithm>

namespace nccl_ha::relay {
namespace {

constexpr uint32_t unreached = UINT32_MAX;

/// Hop counts from one node, and who is before whom on shortest ways.
class ShortestWays {
 public:
  /// Ways lead through nodes that relay and are not `avoided`; never over a cable between `from`
  /// and `not_to`.
  ShortestWays(const Topology& topology, uint32_t from, const std::vector<bool>& avoided,
               uint32_t not_to)
      : topology_(topology),
        from_(from),
        avoided_(avoided),
        not_to_(not_to),
        distance_(topology.nodes().size(), unreached) {
    std::vector<uint32_t> queue{from};
    distance_[from] = 0;
    for (size_t at = 0; at < queue.size(); ++at) {
      const uint32_t node = queue[at];
      if (!leads_on(node)) {
        continue;
      }
      for (const TopologyLink& link : topology_.links(node)) {
        if (distance_[link.node] == unreached && allows(node, link.node)) {
          distance_[link.node] = distance_[node] + 1;
          queue.push_back(link.node);
        }
      }
    }
  }

  uint32_t distance(uint32_t node) const { return distance_[node]; }

  /// Those of least hops to `to`, at most `limit`, by ids from the end of the way.
  void collect(uint32_t to, size_t limit, std::vector<Route>& out) const {
    std::vector<uint32_t> way{to};
    extend(way, limit, out);
  }

 private:
  bool leads_on(uint32_t node) const {
    return node == from_ || (topology_.nodes()[node].relays && !avoided_[node]);
  }
  bool allows(uint32_t node, uint32_t next) const {
    return !(node == from_ && next == not_to_) && !(node == not_to_ && next == from_);
  }

  void extend(std::vector<uint32_t>& way, size_t limit, std::vector<Route>& out) const {
    const uint32_t node = way.back();
    if (node == from_) {
      out.push_back(route(way));
      return;
    }
    std::optional<uint32_t> last;
    for (const TopologyLink& link : topology_.links(node)) {
      if (out.size() >= limit) {
        return;
      }
      const bool before = distance_[link.node] != unreached &&
                          distance_[link.node] + 1 == distance_[node] && leads_on(link.node) &&
                          allows(link.node, node);
      if (before && last != link.node) {
        way.push_back(link.node);
        extend(way, limit, out);
        way.pop_back();
      }
      last = link.node;
    }
  }

  Route route(const std::vector<uint32_t>& backwards) const {
    Route made;
    for (auto node = backwards.rbegin(); node != backwards.rend(); ++node) {
      made.nodes.push_back(topology_.nodes()[*node].id);
      if (node != backwards.rbegin()) {
        const uint64_t speed = topology_.speed_between(*(node - 1), *node);
        made.speed_mbps = made.hops() == 1 ? speed : std::min(made.speed_mbps, speed);
      }
    }
    return made;
  }

  const Topology& topology_;
  uint32_t from_;
  const std::vector<bool>& avoided_;
  uint32_t not_to_;
  std::vector<uint32_t> distance_;
};

/// The shortest way that shares neither a host nor a cable with `first`.
std::optional<Route> way_apart(const Topology& topology, uint32_t self, uint32_t to,
                               const Route& first) {
  std::vector<bool> avoided(topology.nodes().size());
  for (size_t i = 1; i + 1 < first.nodes.size(); ++i) {
    avoided[*topology.find(first.nodes[i])] = true;
  }
  const uint32_t not_to = first.hops() == 1 ? to : unreached;
  const ShortestWays ways(topology, self, avoided, not_to);
  std::vector<Route> found;
  if (ways.distance(to) != unreached) {
    ways.collect(to, 1, found);
  }
  return found.empty() ? std::nullopt : std::optional(std::move(found.front()));
}

RouteEntry make_entry(const Topology& topology, uint32_t self, uint32_t to,
                      const ShortestWays& ways, const RouteOptions& options) {
  RouteEntry entry;
  entry.destination = topology.nodes()[to].id;
  if (ways.distance(to) == unreached) {
    return entry;
  }
  entry.distance = ways.distance(to);
  const size_t hops_limit = options.relay ? options.relays_max + 1 : 1;
  if (entry.distance > hops_limit) {
    return entry;
  }
  ways.collect(to, equal_routes_max, entry.routes);
  const size_t equal = entry.routes.size();
  const auto apart =
      options.relay ? way_apart(topology, self, to, entry.routes.front()) : std::nullopt;
  const bool useful = apart && apart->hops() <= hops_limit && apart->hops() > entry.distance;
  if (useful) {
    entry.routes.push_back(*apart);
  }
  // Direct ones come first in every respect: load goes over nobody else's host where a cable does
  // it.
  if (entry.distance == 1) {
    entry.sharing = 1;
  } else {
    const bool detour = useful && apart->hops() <= entry.distance + options.detour_max;
    entry.sharing = options.split ? equal + (detour ? 1 : 0) : 1;
  }
  return entry;
}

}  // namespace

RouteTable RouteTable::make(const Topology& topology, NodeId self, const RouteOptions& options) {
  RouteTable table;
  const auto own = topology.find(self);
  if (!own) {
    return table;
  }
  const std::vector<bool> avoids_none(topology.nodes().size());
  const ShortestWays ways(topology, *own, avoids_none, unreached);
  for (uint32_t node = 0; node < topology.nodes().size(); ++node) {
    if (node != *own) {
      table.entries_.push_back(make_entry(topology, *own, node, ways, options));
    }
  }
  return table;
}

const RouteEntry* RouteTable::find(NodeId destination) const {
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), destination,
                       [](const RouteEntry& one, NodeId id) { return one.destination < id; });
  return found == entries_.end() || found->destination != destination ? nullptr : &*found;
}

std::vector<uint32_t> shares(const RouteEntry& entry) {
  constexpr uint32_t whole = 1024;
  const std::span routes = std::span(entry.routes).first(entry.sharing);
  const bool known = std::all_of(routes.begin(), routes.end(),
                                 [](const Route& route) { return route.speed_mbps > 0; });
  std::vector<double> weights;
  double sum = 0;
  for (const Route& route : routes) {
    const double speed = known ? static_cast<double>(route.speed_mbps) : 1.0;
    weights.push_back(speed / static_cast<double>(route.hops()));
    sum += weights.back();
  }
  std::vector<uint32_t> parts;
  uint32_t given = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool last = i + 1 == weights.size();
    const auto part = static_cast<uint32_t>(weights[i] / sum * whole);
    parts.push_back(last ? whole - given : part);
    given += parts.back();
  }
  return parts;
}

size_t RouteRotation::next(std::span<const uint32_t> shares) {
  if (credit_.size() != shares.size()) {
    credit_.assign(shares.size(), 0);
  }
  int64_t sum = 0;
  size_t best = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    credit_[i] += shares[i];
    sum += shares[i];
    best = credit_[i] > credit_[best] ? i : best;
  }
  credit_[best] -= sum;
  return best;
}

Result<void> check_route(std::span<const NodeId> nodes, size_t at, NodeId self, size_t relays_max) {
  const bool too_long = nodes.size() > relays_max + 2;
  if (nodes.size() < 2 || too_long) {
    return fail(Errc::invalid_argument,
                fmt::format("a route of {} hosts, at most {} may lie between its ends",
                            nodes.size(), relays_max));
  }
  if (at >= nodes.size() || nodes[at] != self) {
    return fail(Errc::invalid_argument, "a route that does not lead through this host");
  }
  std::vector<NodeId> sorted(nodes.begin(), nodes.end());
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  if (number(sorted.front()) == 0 || twice) {
    return fail(Errc::invalid_argument, "a route that leads through a host twice");
  }
  return {};
}

}  // namespace nccl_ha::relay
