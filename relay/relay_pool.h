// How much memory a relay has for frames, and how it is dealt out.
//
// A session keeps what it gets until it ends.  The less is free the less a new one gets, down to
// the fewest slots with which it works: it is slower then, as its neighbours have to wait for free
// ones.  Pure; one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "relay/frame.h"
#include "relay/hop_line.h"

namespace nccl_ha::relay {

class RelayPool {
 public:
  /// A session gets at most this part of what is free, if that is enough for it to work.
  static constexpr size_t part_max = 8;

  explicit RelayPool(size_t bytes) : bytes_(bytes) {}

  /// Of a session with so many slots in each direction.
  static size_t bytes_of(uint16_t slots, uint32_t chunk_bytes) {
    return size_t{2} * slots * (frame_header_bytes + chunk_bytes);
  }
  /// How many of the slots that it asks for a session gets; 0: there is no room for it, or `left`
  /// bytes of its neighbour's share are not enough.
  uint16_t take(uint16_t asked, uint32_t chunk_bytes, size_t left = SIZE_MAX) {
    const size_t free = std::min(bytes_ - used_, left);
    const size_t each = bytes_of(1, chunk_bytes);
    const auto fit = std::max<size_t>(free / part_max / each, slots_min);
    const auto slots = static_cast<uint16_t>(std::min<size_t>(asked, fit));
    if (bytes_of(slots, chunk_bytes) > free) {
      return 0;
    }
    used_ += bytes_of(slots, chunk_bytes);
    used_most_ = std::max(used_most_, used_);
    return slots;
  }
  void give_back(uint16_t slots, uint32_t chunk_bytes) { used_ -= bytes_of(slots, chunk_bytes); }

  size_t bytes() const { return bytes_; }
  size_t used() const { return used_; }
  size_t used_most() const { return used_most_; }

 private:
  size_t bytes_;
  size_t used_ = 0;
  size_t used_most_ = 0;
};

}  // namespace nccl_ha::relay
