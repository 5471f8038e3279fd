// How often and for how long a connection tries before it fails for good.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "ha/invariant.h"
#include "runtime/base/clock.h"

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
      if (ends_) {
        left_ = std::max(*ends_ - now, Duration(0));
        ended_at_ = now;
      }
      ends_ = std::nullopt;
    } else if (!ends_) {
      const bool goes_on = resumes_ && left_ && now - ended_at_ < time_;
      ends_ = now + (goes_on ? *left_ : time_);
    }
    resumes_ = false;
    invariants_.hold(ends_.has_value() == path, "time is spent while a path is missing");
    invariants_.hold(!ends_ || *ends_ - now <= time_, "no more time is left than there was");
  }
  /// The time is spent then; time in which nobody could look does not count.  While there is none
  /// that changes nothing.
  void move_end(Instant end) {
    if (ends_) {
      ends_ = end;
    }
  }
  /// The path that is about to be missed again was of no use to anybody: the time goes on from
  /// where that path had ended it.
  void resume() { resumes_ = true; }
  /// Traffic went on: what was used up before counts no more.
  void served() { left_.reset(); }
  /// When the time is spent; nothing while there is a path.
  std::optional<Instant> ends() const { return ends_; }
  Duration time() const { return time_; }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  uint64_t failures_max_;
  Duration time_;
  uint64_t failures_ = 0;
  std::optional<Instant> ends_;
  bool resumes_ = false;
  std::optional<Duration> left_;  ///< when the need ended last
  Instant ended_at_{};
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
