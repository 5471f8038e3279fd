// All hosts and the cables between them, as one host knows them at one moment.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "relay/link_state.h"
#include "relay/node_id.h"

namespace nccl_ha::relay {

struct TopologyNode {
  NodeId id{};
  std::string name;  ///< for people; may be empty
  std::vector<IpAddress> addresses;
  bool relays = true;  ///< paths of others may lead through it
};

/// One end of a cable.
struct TopologyLink {
  uint32_t node = 0;            ///< the one at the other end, as an index
  uint32_t interface = 0;       ///< of this end
  uint32_t peer_interface = 0;  ///< of the other one
  uint32_t speed_mbps = 0;      ///< of the slower end; 0: unknown
};

/// Unchangeable; any thread.
class Topology {
 public:
  /// A cable counts where both ends tell of it.  Of several states of one host the first counts.
  static Topology make(std::vector<LinkState> states);

  const std::vector<TopologyNode>& nodes() const { return nodes_; }  ///< ascending by id
  std::optional<uint32_t> find(NodeId node) const;
  /// Of one node, ascending by the node at the other end.  Two cables may lead to the same one.
  std::span<const TopologyLink> links(uint32_t node) const {
    return std::span(links_).subspan(first_link_[node], first_link_[node + 1] - first_link_[node]);
  }
  size_t cable_count() const { return links_.size() / 2; }
  /// How many different nodes a cable leads to.
  size_t degree(uint32_t node) const;
  /// Of all cables between two together; 0: there is none, or nobody knows.
  uint64_t speed_between(uint32_t one, uint32_t other) const;
  bool adjacent(uint32_t one, uint32_t other) const;
  /// Those to which cables lead, over any number of hosts; itself too.  Ascending.
  std::vector<uint32_t> component(uint32_t node) const;

 private:
  std::vector<TopologyNode> nodes_;
  std::vector<TopologyLink> links_;
  std::vector<size_t> first_link_{0};  ///< of each node, and the end
};

}  // namespace nccl_ha::relay
