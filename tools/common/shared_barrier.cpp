#include "tools/common/shared_barrier.h"

#include <sched.h>

namespace nccl_ha::tools {

Result<void> SharedBarrier::wait(uint32_t count, const std::function<Result<void>()>& check) {
  const uint32_t round = round_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return {};
  }
  for (uint32_t spins = 1; round_.load(std::memory_order_acquire) == round; ++spins) {
    sched_yield();
    if (spins % 1024 == 0) {
      if (auto checked = check(); !checked) {
        return checked;
      }
    }
  }
  return {};
}

}  // namespace nccl_ha::tools
