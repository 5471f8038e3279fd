// Assertions for programmers' errors; operating errors are Results.
#pragma once

#include <atomic>

namespace nccl_ha {

/// Prints where and what, then aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* text) noexcept;

namespace detail {
inline std::atomic<bool> checks_deeply{false};
}

/// Invariants that cost more than a few comparisons are looked at: in debug and sanitizer builds,
/// and in a process that simulates.
inline bool deep_checks() {
#if !defined(NDEBUG) || defined(NHA_DEBUG_CHECKS)
  return true;
#else
  return detail::checks_deeply.load(std::memory_order_relaxed);
#endif
}
/// From now on, in all of the process.
inline void check_deeply() { detail::checks_deeply.store(true, std::memory_order_relaxed); }

}  // namespace nccl_ha

/// Always on; not for the data path.
#define NHA_ASSERT(condition, text)                                  \
  do {                                                               \
    if (!(condition)) [[unlikely]] {                                 \
      ::nccl_ha::check_failed(__FILE__, __LINE__, #condition, text); \
    }                                                                \
  } while (false)

/// On in debug and sanitizer builds.
#if !defined(NDEBUG) || defined(NHA_DEBUG_CHECKS)
#define NHA_DASSERTS 1
#define NHA_DASSERT(condition, text) NHA_ASSERT(condition, text)
#else
#define NHA_DASSERT(condition, text) static_cast<void>(0)
#endif
