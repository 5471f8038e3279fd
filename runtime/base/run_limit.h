// How long somebody's answer is waited for.
#pragma once

#include <algorithm>
#include <utility>

#include "runtime/base/instant.h"

namespace nccl_ha {

/// Time in which this process did not run does not count (LostTime): the answer may have been there
/// all along, and what is to bring it about is partly its own to do.
class RunLimit {
 public:
  void begin(const Moment& now, Duration limit) {
    begun_ = now;
    limit_ = limit;
    doubted_ = false;
  }
  /// At least so much is left from now on.
  void allow(const Moment& now, Duration more) {
    limit_ = std::max(limit_, now.ran_since(begun_) + more);
  }
  Duration limit() const { return limit_; }
  /// 0: it has passed.
  Duration left(const Moment& now) const {
    return std::max(limit_ - now.ran_since(begun_), Duration(0));
  }
  /// The same for a timer that was due at `due`.  Where it comes late nothing says when the process
  /// ceased to run, which may have slept: once it has as much time again.
  Duration left(const Moment& now, Instant due) {
    if (!std::exchange(doubted_, true)) {
      allow(now, std::min(now.now - due, limit_));
    }
    return left(now);
  }

 private:
  Moment begun_;
  Duration limit_{};
  bool doubted_ = false;
};

}  // namespace nccl_ha
