// What this process knows of the mesh, for all its threads.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "relay/neighbours.h"
#include "relay/topology.h"

namespace nccl_ha::relay {

/// At one moment.  Unchangeable.
struct MeshView {
  uint64_t revision = 0;
  NodeId self{};
  Topology topology;
  std::vector<Neighbour> neighbours;  ///< that hear us
};

class TopologyBoard {
 public:
  /// Any thread.  Null: nothing is known yet.
  std::shared_ptr<const MeshView> read() const {
    const std::lock_guard lock(mutex_);
    return view_;
  }
  void publish(std::shared_ptr<const MeshView> view) {
    const std::lock_guard lock(mutex_);
    view_ = std::move(view);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const MeshView> view_;
};

}  // namespace nccl_ha::relay
