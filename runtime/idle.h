// What a progress thread does when it finds no work: spin, then yield, then sleep.  Pure.
#pragma once

#include "runtime/clock.h"

namespace nccl_ha {

class IdlePolicy {
 public:
  enum class Step { spin, yield, sleep };
  /// Spins for `spin` after the last work, then yields the processor for `yield`, then sleeps.
  IdlePolicy(Duration spin, Duration yield) : spin_(spin), yield_(spin + yield) {}

  Step next(bool worked, Instant now) {
    if (worked || !idle_) {
      idle_ = !worked;
      since_ = now;
      return Step::spin;
    }
    const Duration idle_for = now - since_;
    return idle_for < spin_ ? Step::spin : idle_for < yield_ ? Step::yield : Step::sleep;
  }

 private:
  Duration spin_;
  Duration yield_;
  bool idle_ = false;
  Instant since_{};
};

}  // namespace nccl_ha
