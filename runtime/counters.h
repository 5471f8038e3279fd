// A counter with one writer that any thread may read.
#pragma once

#include <atomic>
#include <cstdint>

namespace nccl_ha {

class Counter {
 public:
  /// The owning thread only; no locked instruction.
  void add(uint64_t amount = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace nccl_ha
