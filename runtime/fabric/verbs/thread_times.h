// What a thread did with its time, as the kernel counts it: so that one that got no processor is
// told from one that waits for something.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/base/clock.h"

namespace nccl_ha::fabric::verbs {

struct ThreadTimes {
  Duration ran{};
  Duration waited{};      ///< for a processor; not the wait that is not over yet
  bool runnable = false;  ///< it runs, or waits for a processor
};

/// Of the kernel's words; nullopt: they say something else.
std::optional<ThreadTimes> parse_thread_times(std::string_view schedstat, std::string_view stat);

/// Of so much time, what something else than the want of a processor has taken.  Pure.
Duration time_kept(Duration gone, const ThreadTimes& begun, const ThreadTimes& now);

/// Of one thread.
class ThreadWatch {
 public:
  ThreadWatch() = default;
  ~ThreadWatch();
  ThreadWatch(const ThreadWatch&) = delete;
  ThreadWatch& operator=(const ThreadWatch&) = delete;

  // The thread itself.
  void open();
  void begin();
  /// Any thread that has seen what the other one wrote after begin(): as time_kept(); all of `gone`
  /// where the kernel does not say.
  Duration kept_since_begin(Duration gone) const;

 private:
  std::optional<ThreadTimes> read() const;

  int schedstat_ = -1;
  int stat_ = -1;
  std::atomic<Duration> ran_{};
  std::atomic<Duration> waited_{};
};

}  // namespace nccl_ha::fabric::verbs
