// How slot indexes go from one thread to another.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nccl_ha {

/// Single-producer single-consumer ring of slot indexes.  A cell carries its lap beside the index,
/// so that handing one over moves a single cache line.
template <size_t Capacity>
class IndexRing {
  static_assert(Capacity != 0 && (Capacity & (Capacity - 1)) == 0, "positions wrap");

 public:
  void push(uint16_t index) {  // producer; never full: there are only Capacity slots
    cells_[tail_ % Capacity].store(lap_of(tail_) | index, std::memory_order_release);
    ++tail_;
    __builtin_prefetch(&cells_[tail_ % Capacity], 1);
  }
  bool pop(uint16_t* index) {  // consumer
    const uint32_t cell = cells_[head_ % Capacity].load(std::memory_order_acquire);
    if ((cell & lap_mask) != lap_of(head_)) {
      return false;
    }
    *index = static_cast<uint16_t>(cell);
    ++head_;
    return true;
  }
  bool any() const {  // consumer
    return (cells_[head_ % Capacity].load(std::memory_order_relaxed) & lap_mask) == lap_of(head_);
  }

 private:
  static constexpr uint32_t lap_mask = 0xFFFF0000;
  /// Never that of the lap before, and not 0 in the first one.
  static uint32_t lap_of(uint32_t position) { return ((position / Capacity + 1) << 16) & lap_mask; }

  alignas(64) uint32_t tail_ = 0;  // producer's
  alignas(64) uint32_t head_ = 0;  // consumer's
  alignas(64) std::array<std::atomic<uint32_t>, Capacity> cells_{};
};

}  // namespace nccl_ha
