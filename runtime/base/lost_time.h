// Time in which this process did not run although something was to be done.
#pragma once

#include <algorithm>

#include "runtime/base/instant.h"

namespace nccl_ha {

/// Grows by how much later turns come than they were due: the processor went to somebody else, the
/// process was stopped, callers stayed away, or a turn took long.  Whoever waits for somebody's
/// answer does not count that time: the answer may have been there all along.  Sleep until a
/// deadline is no lost time, what a wake-up comes late is.  Owner thread only.
class LostTime {
 public:
  /// Turns may be so far apart before any of it counts as lost: a process that runs as often sees
  /// answers soon enough, and a fault must not stay unnoticed on a host that is always busy.
  static constexpr Duration allowance = std::chrono::milliseconds(10);

  /// A turn is made; the next one is due at once.
  void on_turn(Instant now) {
    if (now > due_ && now - due_ > allowance && due_ != Instant{}) [[unlikely]] {
      total_ += now - due_ - allowance;
    }
    due_ = now;
  }
  /// None is due before then, unless something arrives.
  void rest_until(Instant then) { due_ = std::max(due_, then); }
  /// Only differences mean something.
  Duration total() const { return total_; }

 private:
  Instant due_{};
  Duration total_{};
};

}  // namespace nccl_ha
