// "Device" and pinned host memory: host memory whose end is at a page that nobody may touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace nccl_ha::emulated {

struct Allocation {
  uintptr_t start = 0;
  size_t bytes = 0;
  bool on_device = false;
  int device = 0;
};

/// Addresses of device memory are multiples of it, as CUDA guarantees; so up to so many bytes past
/// the end go unnoticed.
inline constexpr size_t device_alignment = 256;

/// nullptr when the host has no more.
void* allocate(size_t bytes, bool on_device);

/// False when `place` is not what allocate() returned.  For a while after, whoever touches it
/// faults.
bool release(const void* place);

/// The allocation that contains `place`.
std::optional<Allocation> allocation_of(const void* place);

}  // namespace nccl_ha::emulated
