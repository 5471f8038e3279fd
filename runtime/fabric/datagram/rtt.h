// Round-trip time and retransmission timeout after RFC 6298, in nanoseconds.
#pragma once

#include <algorithm>
#include <chrono>

#include "runtime/base/clock.h"

namespace nccl_ha::fabric {

class RttEstimator {
 public:
  struct Limits {
    Duration initial;  ///< before the first sample (usnic's constant, 100 ms)
    Duration min;
    Duration max;
  };
  explicit RttEstimator(const Limits& limits) : limits_(limits), rto_(limits.initial) {}

  /// Every acknowledgement echoes the send time of the packet that caused it, so samples of
  /// retransmitted segments are unambiguous (RFC 6298 section 3, timestamp option).
  /// One that is far longer than what was usual is a standstill of either host, of which it says
  /// nothing how long packets take: where they do take that long, the next ones tell.
  void sample(Duration rtt) {
    rtt = std::max(rtt, Duration{1});
    if (samples_ != 0) {
      rtt = std::min(rtt, std::max(backoff_max, 4 * srtt_));
    }
    if (samples_ == 0) {
      srtt_ = rtt;
      rttvar_ = rtt / 2;
    } else {
      const Duration error = srtt_ > rtt ? srtt_ - rtt : rtt - srtt_;
      rttvar_ += (error - rttvar_) / 4;  // beta = 1/4
      srtt_ += (rtt - srtt_) / 8;        // alpha = 1/8
    }
    ++samples_;
    min_rtt_ = samples_ == 1 ? rtt : std::min(min_rtt_, rtt);
    rto_ = std::clamp(srtt_ + std::max(4 * rttvar_, granularity), limits_.min, limits_.max);
    backoff_ = 0;
  }
  /// A timeout: the next one is twice as long (RFC 6298, 5.5), up to backoff_max, or the estimate
  /// where that is more.
  static constexpr Duration backoff_max = std::chrono::milliseconds(200);
  void back_off() { backoff_ = std::min(backoff_ + 1, 16); }
  Duration rto() const {
    // What an outage was long says nothing of what comes after it: whoever waits out seconds of it
    // should not wait as long again when packets get through.
    const Duration longest = std::max(rto_, std::min(backoff_max, limits_.max));
    Duration value = rto_;
    for (int i = 0; i < backoff_ && value < longest; ++i) {
      value *= 2;
    }
    return std::min(value, longest);
  }
  /// Before the first sample: the initial timeout.
  Duration srtt() const { return samples_ == 0 ? limits_.initial : srtt_; }
  Duration min_rtt() const { return samples_ == 0 ? limits_.initial : min_rtt_; }
  /// The way has become longer.
  void forget_min(Duration least_of_late) { min_rtt_ = least_of_late; }
  bool measured() const { return samples_ != 0; }

 private:
  /// One tick of the timer wheel.
  static constexpr Duration granularity = std::chrono::microseconds(17);
  Limits limits_;
  Duration rto_;
  Duration srtt_{};
  Duration rttvar_{};
  Duration min_rtt_{};
  uint64_t samples_ = 0;
  int backoff_ = 0;
};

}  // namespace nccl_ha::fabric
