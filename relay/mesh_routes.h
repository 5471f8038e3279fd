// Neighbours and routes as discovery knows them at the moment.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "relay/hop_source.h"
#include "relay/routes.h"
#include "relay/topology_board.h"

namespace nccl_ha::relay {

/// Any thread.
class MeshRoutes final : public NextHops {
 public:
  /// Relay nodes of all hosts listen on `port`.
  MeshRoutes(std::shared_ptr<const TopologyBoard> board, const RouteOptions& options, uint16_t port)
      : board_(std::move(board)), options_(options), port_(port) {}

  std::optional<NextHop> find(NodeId neighbour) const override;
  /// By the routes' shares (RouteRotation).
  std::vector<NodeId> relays_to(NodeId destination) override;

 private:
  std::shared_ptr<const TopologyBoard> board_;
  RouteOptions options_;
  uint16_t port_;
  std::mutex mutex_;
  std::shared_ptr<const MeshView> view_;  ///< of which table_ is
  RouteTable table_;
  std::map<NodeId, RouteRotation> rotations_;  ///< by destination
};

}  // namespace nccl_ha::relay
