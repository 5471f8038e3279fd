// Monotonic time.  Code asks a Clock it was given, so that tests and the simulator own the time.
#pragma once

#include <time.h>

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

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant now() = 0;
};

/// CLOCK_MONOTONIC.  Any thread.
class SteadyClock final : public Clock {
 public:
  Instant now() override {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return Instant(std::chrono::seconds(time.tv_sec) + Duration(time.tv_nsec));
  }
};

/// The time of one turn: read from another clock when somebody first asks.  Owner thread only.
class TurnClock final : public Clock {
 public:
  explicit TurnClock(Clock& source) : source_(source) {}
  Instant now() override {
    if (!read_) {
      now_ = source_.now();
      read_ = true;
    }
    return now_;
  }
  /// The next now() reads again.
  void begin_turn() { read_ = false; }
  /// now() was called in this turn.
  bool was_read() const { return read_; }

 private:
  Clock& source_;
  Instant now_{};
  bool read_ = false;
};

/// Stands still unless moved.
class ManualClock final : public Clock {
 public:
  Instant now() override { return now_; }
  void set(Instant now) { now_ = now; }
  void advance(Duration by) { now_ += by; }

 private:
  Instant now_{};
};

}  // namespace nccl_ha
