// Monotonic time.  Code asks a Clock it was given, so that tests and the simulator own the time.
#pragma once

#include <time.h>

#include "runtime/base/instant.h"
#include "runtime/base/lost_time.h"

namespace nccl_ha {

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
      read();
    }
    return now_;
  }
  /// The next now() reads again.
  void begin_turn() { read_ = false; }
  /// now() was called in this turn.
  bool was_read() const { return read_; }
  LostTime& lost() { return lost_; }
  Moment moment() {
    const Instant now = this->now();
    return {now, lost_.total()};
  }

 private:
  [[gnu::noinline]] void read() {
    now_ = source_.now();
    read_ = true;
    lost_.on_turn(now_);
  }

  Clock& source_;
  LostTime lost_;
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
