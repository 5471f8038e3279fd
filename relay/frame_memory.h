// Registered memory for frames: places of equal size.
#pragma once

#include <cstdint>
#include <vector>

#include "relay/hop_source.h"
#include "runtime/base/check.h"
#include "runtime/base/pages.h"
#include "runtime/base/result.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::relay {

/// Destroyed when no path uses it any more.
class FrameMemory {
 public:
  explicit FrameMemory(HopSource& hops) : hops_(hops) {}
  ~FrameMemory() { release(); }
  FrameMemory(const FrameMemory&) = delete;
  FrameMemory& operator=(const FrameMemory&) = delete;

  /// Anew; no hop knows it.
  void allocate(size_t places, size_t place_bytes) {
    release();
    bytes_ = Pages(places * place_bytes);
    place_bytes_ = place_bytes;
  }
  /// Hops there may use it from now on; any number of times.  `domain` as theirs, for all places.
  Result<void> enter(const HopPlace& place, uint64_t domain) {
    if (find(place) != nullptr) {
      return {};
    }
    auto made = hops_.add_memory(place, domain, bytes_.data(), bytes_.size());
    if (!made) {
      return made.error();
    }
    entries_.push_back({place, *made});
    return {};
  }
  HopSource& hops() const { return hops_; }
  std::byte* place(size_t index) { return bytes_.data() + index * place_bytes_; }
  const std::byte* place(size_t index) const { return bytes_.data() + index * place_bytes_; }
  size_t place_bytes() const { return place_bytes_; }
  size_t bytes() const { return bytes_.size(); }
  /// For a neighbour that writes by a hop there.
  uint32_t remote_key(const HopPlace& of) const { return keys(of).remote_key; }
  /// For a hop there to write from.
  fabric::Gather gather(size_t index, size_t from, size_t length, const HopPlace& of) const {
    return {place(index) + from, static_cast<uint32_t>(length), keys(of).local_key};
  }

 private:
  struct Entry {
    HopPlace place;
    fabric::Registration keys;
  };
  /// One table serves all kinds that the processor writes for.
  const Entry* find(const HopPlace& place) const {
    for (const Entry& entry : entries_) {
      const bool same_device =
          entry.place.at.kind == place.at.kind && entry.place.at.device == place.at.device;
      if (entry.place.direct ? place.direct : !place.direct && same_device) {
        return &entry;
      }
    }
    return nullptr;
  }
  const fabric::Registration& keys(const HopPlace& of) const {
    const Entry* found = find(of);
    NHA_ASSERT(found != nullptr, "a hop uses only memory that it was made known to");
    return found->keys;
  }
  void release() {
    for (const Entry& entry : entries_) {
      hops_.remove_memory(entry.keys);
    }
    entries_.clear();
  }

  HopSource& hops_;
  Pages bytes_;
  size_t place_bytes_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace nccl_ha::relay
