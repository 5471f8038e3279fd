// What a progress thread does when it finds no work: spin, then yield, then sleep.  Pure.
#pragma once

#include <algorithm>

#include "runtime/base/clock.h"
#include "runtime/base/config.h"

namespace nccl_ha {

class IdlePolicy {
 public:
  enum class Step { spin, yield, sleep };
  /// A thread that a heartbeat wakes has nothing to yield for, one in the middle of a transfer
  /// does. What tells them apart is how many turns found work since it slept: each allows so much
  /// more. Turns are counted rather than time, which also passes while other threads have the
  /// processor.
  static constexpr Duration yield_per_turn = std::chrono::microseconds(25);

  /// Spins for `spin` after the last work, then yields the processor for `yield` or what its
  /// turns allow of it, then sleeps.
  IdlePolicy(Duration spin, Duration yield) : spin_(spin), yield_(yield) {}
  explicit IdlePolicy(const Config& config)
      : IdlePolicy(std::chrono::microseconds(config.idle_spin_us),
                   std::chrono::microseconds(config.idle_yield_us)) {}

  Step next(bool worked, Instant now) {
    if (worked) {
      turns_ = slept_ ? 1 : turns_ + 1;
      slept_ = false;
    }
    if (worked || !idle_) {
      idle_ = !worked;
      since_ = now;
      return Step::spin;
    }
    const Duration idle_for = now - since_;
    if (idle_for < spin_) {
      return Step::spin;
    }
    if (idle_for < spin_ + std::min(yield_, turns_ * yield_per_turn)) {
      return Step::yield;
    }
    slept_ = true;
    return Step::sleep;
  }

 private:
  Duration spin_;
  Duration yield_;
  bool idle_ = false;
  bool slept_ = true;
  int64_t turns_ = 0;  ///< with work, since it slept
  Instant since_{};    ///< the last work
};

}  // namespace nccl_ha
