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
  bool rests = false;     ///< a switch is there, or nobody: nothing is asked or told (MeshLook)
  bool looks = false;     ///< it is not known yet whether there is a mesh (MeshLook)
  bool crowded = false;   ///< a switch is there, also while hosts are looked for
  bool open = false;      ///< NeighboursPacket::open
  bool of_job = false;    ///< NeighboursPacket::of_job
  uint32_t key_name = 0;  ///< NeighboursPacket::key_name
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
