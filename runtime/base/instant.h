// Points and lengths of monotonic time.
#pragma once

#include <chrono>

namespace nccl_ha {

using Duration = std::chrono::nanoseconds;

/// The time base of Instant: nanoseconds of CLOCK_MONOTONIC, or of a simulation.
struct MonotonicTime {
  using duration = Duration;
  using rep = Duration::rep;
  using period = Duration::period;
  using time_point = std::chrono::time_point<MonotonicTime, Duration>;
  static constexpr bool is_steady = true;
};
using Instant = MonotonicTime::time_point;

/// A point in time, and how much of the time before it this process did not run (LostTime).
struct Moment {
  Instant now{};
  Duration lost{};
  /// How long this process has run since an earlier one.
  Duration ran_since(const Moment& earlier) const {
    return now - earlier.now - (lost - earlier.lost);
  }
};

}  // namespace nccl_ha
