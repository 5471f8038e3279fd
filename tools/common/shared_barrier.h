// A barrier in memory that processes of one host share.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// A barrier for processes of one host, in memory they share; a few hundred nanoseconds when every
/// process has a core.
class SharedBarrier {
 public:
  /// Waits until `count` processes are here; `check` runs now and then and ends the wait with an
  /// error.
  Result<void> wait(uint32_t count, const std::function<Result<void>()>& check);

 private:
  std::atomic<uint32_t> arrived_{0};
  std::atomic<uint32_t> round_{0};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "the barrier is shared by processes");

}  // namespace nccl_ha::tools
