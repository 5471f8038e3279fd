// Registered memory for frames: places of equal size.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "relay/hop_source.h"
#include "runtime/base/check.h"
#include "runtime/base/pages.h"
#include "runtime/base/result.h"
#include "runtime/fabric/own_memory.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::relay {

/// Destroyed when no path uses it any more.  One domain.
class FrameMemory {
 public:
  explicit FrameMemory(HopSource& hops) : hops_(hops) {}
  FrameMemory(const FrameMemory&) = delete;
  FrameMemory& operator=(const FrameMemory&) = delete;

  /// Anew; no hop knows it.
  void allocate(size_t places, size_t place_bytes) {
    entries_.clear();
    bytes_ = std::make_shared<Pages>(places * place_bytes);
    place_bytes_ = place_bytes;
  }
  /// Hops there that are made with these options may use it once they have an address.  `domain`
  /// as theirs, for all places.
  Result<void> enter(const HopPlace& place, fabric::PathOptions& options) {
    const Entry* known = find(place);
    if (known == nullptr) {
      auto made = hops_.own_memory(place, options.domain,
                                   std::shared_ptr<void>(bytes_, bytes_->data()), bytes_->size());
      if (!made) {
        return made.error();
      }
      known = &entries_.emplace_back(place, std::move(*made));
    }
    options.memory.push_back(known->memory);
    return {};
  }
  HopSource& hops() const { return hops_; }
  std::byte* place(size_t index) { return bytes_->data() + index * place_bytes_; }
  const std::byte* place(size_t index) const { return bytes_->data() + index * place_bytes_; }
  size_t place_bytes() const { return place_bytes_; }
  size_t bytes() const { return bytes_->size(); }
  /// For a neighbour that writes by a hop there.
  uint32_t remote_key(const HopPlace& of) const { return keys(of).remote_key; }
  /// For a hop there to write from.
  fabric::Gather gather(size_t index, size_t from, size_t length, const HopPlace& of) const {
    return {place(index) + from, static_cast<uint32_t>(length), keys(of).local_key};
  }

 private:
  struct Entry {
    Entry(const HopPlace& at, std::shared_ptr<fabric::OwnMemory> known)
        : place(at), memory(std::move(known)) {}
    HopPlace place;
    std::shared_ptr<fabric::OwnMemory> memory;
  };
  /// One table serves all kinds that the processor writes for.
  const Entry* find(const HopPlace& place) const {
    for (const Entry& entry : entries_) {
      const bool same_device =
          entry.place.at.kind == place.at.kind && entry.place.at.opened() == place.at.opened();
      if (entry.place.direct ? place.direct : !place.direct && same_device) {
        return &entry;
      }
    }
    return nullptr;
  }
  const fabric::RegionKeys& keys(const HopPlace& of) const {
    const Entry* found = find(of);
    NHA_ASSERT(found != nullptr, "a hop uses only memory that it was made known to");
    return found->memory->keys();
  }

  HopSource& hops_;
  std::shared_ptr<Pages> bytes_ = std::make_shared<Pages>();
  size_t place_bytes_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace nccl_ha::relay
