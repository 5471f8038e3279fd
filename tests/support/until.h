#pragma once

#include <sched.h>

#include <chrono>
#include <functional>

namespace nccl_ha::test {

/// Runs `step` until it returns true; false when `limit` has passed.
inline bool until(const std::function<bool()>& step,
                  std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!step()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    sched_yield();
  }
  return true;
}

}  // namespace nccl_ha::test
