// The paths of a port by their numbers, which packets name.  A number tells a path's place and how
// many had it before, so that a packet for a path that is gone finds nobody.  One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/secret.h"

namespace nccl_ha::fabric {

class DatagramPath;

class PathTable {
 public:
  static constexpr uint32_t index_bits = 20;
  static constexpr uint32_t index_mask = (1U << index_bits) - 1;

  /// For the next path that enters; nullopt: there is no place.  Throws std::bad_alloc, and the
  /// table is as before; nothing else here allocates.
  std::optional<uint32_t> next_id(SecretSource& secrets) {
    if (free_.empty()) {
      if (paths_.size() > index_mask) {
        return std::nullopt;
      }
      const size_t places = paths_.size() + 1;
      if (paths_.capacity() < places || generations_.capacity() < places ||
          free_.capacity() < places) {
        paths_.reserve(2 * places);
        generations_.reserve(2 * places);
        free_.reserve(2 * places);
      }
      free_.push_back(static_cast<uint32_t>(paths_.size()));
      paths_.push_back(nullptr);
      generations_.push_back(static_cast<uint16_t>(secrets.bits(32) & generation_mask));
    }
    const uint32_t index = free_.front();
    generations_[index] = static_cast<uint16_t>((generations_[index] + 1) & generation_mask);
    return id_of(index);
  }
  /// `id` is what next_id() gave last.
  void enter(DatagramPath& path, uint32_t id, bool fallback) {
    NHA_ASSERT(!free_.empty() && id == id_of(free_.front()), "no place was given for this path");
    free_.erase(free_.begin());
    paths_[id & index_mask] = &path;
    ++size_;
    fallbacks_ += fallback ? 1 : 0;
  }
  void leave(uint32_t id, bool fallback) {
    NHA_ASSERT(at_place_of(id) != nullptr && id == id_of(id & index_mask), "the path is unknown");
    paths_[id & index_mask] = nullptr;
    free_.push_back(id & index_mask);  // last, so that a number stays unused for long
    --size_;
    fallbacks_ -= fallback ? 1 : 0;
  }

  /// Whatever path has this number's place now, or null; its own number may be another one.
  DatagramPath* at_place_of(uint32_t id) const {
    const uint32_t index = id & index_mask;
    return index < paths_.size() ? paths_[index] : nullptr;
  }
  size_t size() const { return size_; }
  /// None of them is there to carry traffic now.
  bool only_fallbacks() const { return fallbacks_ == size_; }

 private:
  static constexpr uint32_t generation_mask = 4095;
  uint32_t id_of(uint32_t index) const {
    return (static_cast<uint32_t>(generations_[index]) << index_bits) | index;
  }

  std::vector<DatagramPath*> paths_;
  std::vector<uint16_t> generations_;
  std::vector<uint32_t> free_;  // oldest first
  size_t size_ = 0;
  size_t fallbacks_ = 0;
};

}  // namespace nccl_ha::fabric
