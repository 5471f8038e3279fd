#include "relay/mesh_routes.h"

namespace nccl_ha::relay {

std::optional<NextHop> MeshRoutes::find(NodeId neighbour) const {
  const auto view = board_->read();
  if (!view) {
    return std::nullopt;
  }
  for (const Neighbour& one : view->neighbours) {
    if (one.node == neighbour) {
      NextHop found;
      found.relay = one.address;
      found.relay.set_port(port_);
      return found;
    }
  }
  return std::nullopt;
}

std::vector<NodeId> MeshRoutes::relays_to(NodeId destination) {
  const std::lock_guard lock(mutex_);
  const auto view = board_->read();
  if (!view) {
    return {};
  }
  if (view != view_) {
    view_ = view;
    table_ = RouteTable::make(view->topology, view->self, options_);
  }
  const RouteEntry* entry = table_.find(destination);
  if (entry == nullptr || entry->routes.empty()) {
    return {};
  }
  size_t chosen = rotations_[destination].next(shares(*entry));
  if (entry->direct()) {
    // Whoever asks wants a way that is none of the cables.
    chosen = entry->routes.size() > 1 ? 1 : 0;
  }
  const std::vector<NodeId>& nodes = entry->routes[chosen].nodes;
  return {nodes.begin() + 1, nodes.end() - 1};
}

}  // namespace nccl_ha::relay
