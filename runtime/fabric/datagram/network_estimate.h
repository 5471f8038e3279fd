// What a path believes of the network: how long round trips take, and how many segments it holds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

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

  void on_sample(Duration rtt) { rtt_.sample(rtt); }
  /// `sample`: of the acknowledgement, 0 where it has none; `was_full`: the window was what limited
  /// the sender.
  void on_ack(Instant now, uint32_t segments, Duration sample, bool was_full) {
    if (sample.count() != 0) {
      on_sample(sample);
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
  static constexpr Duration tail_wait_min = std::chrono::microseconds(500);
  static CongestionControl::Options congestion_options(Duration target_delay, uint32_t window_max) {
    CongestionControl::Options options;
    options.target_delay = target_delay;
    options.window_max = window_max;
    return options;
  }

  RttEstimator rtt_;
  Duration target_delay_;
  CongestionControl congestion_;
  Instant last_timeout_{};
};

}  // namespace nccl_ha::fabric
