// When to try again.
#pragma once

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/random.h"

namespace nccl_ha::ha {

/// Exponential, with jitter so that a thousand connections do not come back at the same moment.
class Backoff {
 public:
  Backoff(Duration first, Duration longest) : first_(first), longest_(longest), next_(first) {
    NHA_DASSERT(first > Duration(0) && first <= longest, "waits grow up to their limit");
  }
  /// The first attempt goes at once, each further one waits up to twice as long as the one before.
  Duration next(Random& random) {
    if (!tried_) {
      tried_ = true;
      return Duration(0);
    }
    const Duration base = next_;
    next_ = std::min(next_ * 2, longest_);
    return base / 2 + Duration(random.below(static_cast<uint64_t>(base.count() / 2 + 1)));
  }
  void reset() {
    next_ = first_;
    tried_ = false;
  }

 private:
  Duration first_;
  Duration longest_;
  Duration next_;
  bool tried_ = false;
};

}  // namespace nccl_ha::ha
