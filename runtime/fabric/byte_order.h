// Numbers in packets and handles: little-endian, at any offset.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace nccl_ha::fabric {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

/// The caller has checked that there is room.
template <class T>
void put(std::byte* out, size_t offset, T value) {
  std::memcpy(out + offset, &value, sizeof value);
}

template <class T>
T get(const std::byte* in, size_t offset) {
  T value;
  std::memcpy(&value, in + offset, sizeof value);
  return value;
}

}  // namespace nccl_ha::fabric
