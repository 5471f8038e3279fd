// How often and for how long a connection tries before it fails for good.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/clock.h"

namespace nccl_ha::ha {

/// Two bounds: paths that come up and fail again without carrying anything are counted, and the
/// time without a path is limited.  Takes the time from its caller.  One thread.
class RetryBudget {
 public:
  /// `failures` in a row that were for nothing may pass; so may `time` without a path.
  explicit RetryBudget(uint64_t failures = 0, Duration time = {})
      : failures_max_(failures), time_(time) {}

  /// A path that was in use failed.  `carried`: something had got through.  `needed`: traffic would
  /// have taken it.  False: that was once too often.
  [[nodiscard]] bool on_failed(bool carried, bool needed) {
    failures_ = carried ? 0 : failures_ + (needed ? 1 : 0);
    return failures_ <= failures_max_;
  }
  uint64_t failures() const { return failures_; }

  /// Traffic cannot go on, or can again; saying so twice changes nothing.
  void need(bool path, Instant now) {
    if (!path) {
      ends_.reset();
    } else if (!ends_) {
      ends_ = now + time_;
    }
  }
  /// When the time is spent; nothing while there is a path.
  std::optional<Instant> ends() const { return ends_; }
  Duration time() const { return time_; }

 private:
  uint64_t failures_max_;
  Duration time_;
  uint64_t failures_ = 0;
  std::optional<Instant> ends_;
};

}  // namespace nccl_ha::ha
