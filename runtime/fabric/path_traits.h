// What a path is like, for those who must act by it and not by the name of its fabric.
#pragma once

#include <cstdint>

namespace nccl_ha::fabric {

/// The values it is made with may be taken for granted of any path.
struct PathTraits {
  bool placed_by_nic = false;  ///< a device writes what arrives; else the processor does
  /// An acknowledgement says nothing of the peer's host, and needs no message to ride on.
  bool acknowledged_by_nic = false;
  bool keys_per_device = false;  ///< each device has keys of its own for the same memory
  /// What arrived may be read in memory before the completion that tells of it.
  bool visible_before_completion = false;
  bool reaches_gpu_memory = false;
  bool may_reorder = false;  ///< packets of one write may overtake each other (adaptive routing)
  uint8_t hops = 0;          ///< hosts in between
  uint64_t bandwidth = 0;    ///< bytes per second; 0: unknown
  /// The end of a longer write is announced by a write of its own; UINT32_MAX: of none.
  uint32_t end_apart_above = UINT32_MAX;
  bool operator==(const PathTraits&) const = default;
};

}  // namespace nccl_ha::fabric
