#include "relay/topology.h"

#include <algorithm>
#include <tuple>

namespace nccl_ha::relay {

Topology Topology::make(std::vector<LinkState> states) {
  std::stable_sort(states.begin(), states.end(),
                   [](const LinkState& a, const LinkState& b) { return a.origin < b.origin; });
  states.erase(
      std::unique(states.begin(), states.end(),
                  [](const LinkState& a, const LinkState& b) { return a.origin == b.origin; }),
      states.end());
  Topology made;
  for (const LinkState& state : states) {
    made.nodes_.push_back({state.origin, state.name, state.addresses, state.relays});
  }
  for (const LinkState& state : states) {
    const size_t first = made.links_.size();
    for (const LinkRecord& link : state.links) {
      const auto peer = made.find(link.neighbour);
      if (!peer || link.neighbour == state.origin) {
        continue;
      }
      const auto& theirs = states[*peer].links;
      const auto back = std::find_if(theirs.begin(), theirs.end(), [&](const LinkRecord& one) {
        return one.neighbour == state.origin && one.interface == link.peer_interface &&
               one.peer_interface == link.interface;
      });
      if (back != theirs.end()) {
        made.links_.push_back({*peer, link.interface, link.peer_interface,
                               std::min(link.speed_mbps, back->speed_mbps)});
      }
    }
    const auto key = [](const TopologyLink& link) {
      return std::tie(link.node, link.interface, link.peer_interface);
    };
    const auto begin = made.links_.begin() + static_cast<ptrdiff_t>(first);
    std::sort(begin, made.links_.end(),
              [&](const TopologyLink& a, const TopologyLink& b) { return key(a) < key(b); });
    made.links_.erase(
        std::unique(begin, made.links_.end(),
                    [&](const TopologyLink& a, const TopologyLink& b) { return key(a) == key(b); }),
        made.links_.end());
    made.first_link_.push_back(made.links_.size());
  }
  return made;
}

std::optional<uint32_t> Topology::find(NodeId node) const {
  const auto found =
      std::lower_bound(nodes_.begin(), nodes_.end(), node,
                       [](const TopologyNode& one, NodeId id) { return one.id < id; });
  if (found == nodes_.end() || found->id != node) {
    return std::nullopt;
  }
  return static_cast<uint32_t>(found - nodes_.begin());
}

size_t Topology::degree(uint32_t node) const {
  size_t count = 0;
  std::optional<uint32_t> last;
  for (const TopologyLink& link : links(node)) {
    count += last == link.node ? 0 : 1;
    last = link.node;
  }
  return count;
}

uint64_t Topology::speed_between(uint32_t one, uint32_t other) const {
  uint64_t sum = 0;
  for (const TopologyLink& link : links(one)) {
    sum += link.node == other ? link.speed_mbps : 0;
  }
  return sum;
}

bool Topology::adjacent(uint32_t one, uint32_t other) const {
  const auto all = links(one);
  return std::any_of(all.begin(), all.end(),
                     [&](const TopologyLink& link) { return link.node == other; });
}

std::vector<uint32_t> Topology::component(uint32_t node) const {
  std::vector<bool> seen(nodes_.size());
  std::vector<uint32_t> found{node};
  seen[node] = true;
  for (size_t at = 0; at < found.size(); ++at) {
    for (const TopologyLink& link : links(found[at])) {
      if (!seen[link.node]) {
        seen[link.node] = true;
        found.push_back(link.node);
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace nccl_ha::relay
