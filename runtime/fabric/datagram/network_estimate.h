// What a path believes of the network: how long round trips take, and how many segments it holds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/fabric/datagram/congestion.h"
#include "runtime/fabric/datagram/rtt.h"

namespace nccl_ha::fabric {

class NetworkEstimate {
 public:
  NetworkEstimate(const RttEstimator::Limits& limits, Duration target_delay, uint32_t window_max)
      : rtt_(limits),
        target_delay_(target_delay),
        congestion_(congestion_options(target_delay, window_max)) {}
  /// Both ends have agreed on less.
  void set_window_max(uint32_t window_max) {
    congestion_ = CongestionControl(congestion_options(target_delay_, window_max));
  }

  /// Segments that may be in flight, at least one.
  uint32_t window() const { return congestion_.window(); }
  Duration rto() const { return rtt_.rto(); }
  /// How long nothing comes before the newest segment counts as lost: two round trips (RFC 8985).
  Duration tail_wait(Duration ack_delay) const {
    return std::max<Duration>(2 * rtt_.srtt() + ack_delay, tail_wait_min);
  }

  /// The least round trip; 0: none is known.
  Duration least() const { return rtt_.measured() ? rtt_.min_rtt() : Duration(0); }

  void on_sample(Duration rtt) { rtt_.sample(rtt); }
  /// `sample`: of the acknowledgement, 0 where it has none; `was_full`: the window was what limited
  /// the sender.
  void on_ack(Instant now, uint32_t segments, Duration sample, bool was_full) {
    if (sample.count() != 0) {
      on_sample(sample);
      look_at_least(now, sample);
    }
    congestion_.on_ack(now, segments, sample.count() != 0 ? sample : rtt_.srtt(), rtt_.min_rtt(),
                       was_full);
  }
  void on_loss(Instant now, uint32_t segments) { congestion_.on_loss(now, segments, rtt_.srtt()); }
  void on_timeout(Instant now) {
    // All segments of a lost burst are evicted together; that is one timeout, not many.
    if (now - last_timeout_ >= rtt_.rto() / 2) {
      last_timeout_ = now;
      rtt_.back_off();
      congestion_.on_timeout();
    }
  }

 private:
  /// What made no queue for so long is as near as the peer is by now.
  static constexpr Duration least_for = std::chrono::seconds(10);
  static constexpr Duration tail_wait_min = std::chrono::microseconds(500);
  static CongestionControl::Options congestion_options(Duration target_delay, uint32_t window_max) {
    CongestionControl::Options options;
    options.target_delay = target_delay;
    options.window_max = window_max;
    return options;
  }

  /// Where not one round trip of least_for comes within the target, the window has long been down
  /// to its initial few segments, and the least of these round trips is that of the way itself.  A
  /// queue that stands there comes and goes about the target.  Silence shows nothing.
  void look_at_least(Instant now, Duration sample) {
    const bool was_idle = now - std::exchange(sampled_at_, now) >= least_for / 10;
    if (sample <= rtt_.min_rtt() + target_delay_ || near_at_ == Instant{} || was_idle) {
      near_at_ = now;
      least_of_late_ = Duration::max();
      return;
    }
    least_of_late_ = std::min(least_of_late_, sample);
    if (now - near_at_ >= least_for) {
      rtt_.forget_min(least_of_late_);
      near_at_ = now;
      least_of_late_ = Duration::max();
    }
  }

  RttEstimator rtt_;
  Duration target_delay_;
  CongestionControl congestion_;
  Instant last_timeout_{};
  Instant near_at_{};     ///< the last round trip within the target
  Instant sampled_at_{};  ///< the last one
  Duration least_of_late_ = Duration::max();
};

}  // namespace nccl_ha::fabric
