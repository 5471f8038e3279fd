// A fixed table of pointers behind {index, generation} handles: a handle to something that is gone
// finds nothing, even when its place has been taken again.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace nccl_ha {

struct Handle {
  uint32_t index = 0;
  uint32_t generation = 0;
  uint64_t pack() const { return uint64_t{generation} << 32 | index; }
  static Handle unpack(uint64_t bits) {
    return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
  }
  bool operator==(const Handle&) const = default;
};

/// Owner thread only.
template <class T>
class SlotTable {
 public:
  explicit SlotTable(size_t capacity) : slots_(capacity) {
    free_.reserve(capacity);
    for (size_t i = capacity; i > 0; --i) {
      free_.push_back(static_cast<uint32_t>(i - 1));
    }
  }
  /// nullopt when full.
  std::optional<Handle> insert(T* item) {
    if (free_.empty()) {
      return std::nullopt;
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    slots_[index].item = item;
    return Handle{index, slots_[index].generation};
  }
  T* find(Handle handle) const {
    return handle.index < slots_.size() && slots_[handle.index].generation == handle.generation
               ? slots_[handle.index].item
               : nullptr;
  }
  bool erase(Handle handle) {
    if (find(handle) == nullptr) {
      return false;
    }
    slots_[handle.index].item = nullptr;
    ++slots_[handle.index].generation;
    free_.push_back(handle.index);
    return true;
  }
  size_t size() const { return slots_.size() - free_.size(); }
  size_t capacity() const { return slots_.size(); }
  template <class F>
  void for_each(F&& f) {
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].item != nullptr) {
        f(Handle{i, slots_[i].generation}, *slots_[i].item);
      }
    }
  }

 private:
  struct Slot {
    T* item = nullptr;
    uint32_t generation = 1;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace nccl_ha
