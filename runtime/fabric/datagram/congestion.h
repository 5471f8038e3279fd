// Congestion control of a path: pure, fed by acknowledgements.
//
// Two signals.  Delay, as in Swift (Kumar et al., SIGCOMM 2020): the window grows while round trips
// stay under a target and shrinks in proportion to the excess, at most once per round trip.  Loss,
// in proportion to the share of segments lost in the round, as DCTCP (RFC 8257) reacts to marks.
// Why not a loss-based window (Reno, CUBIC): a bad cable that drops 1 % of packets is no
// congestion, and halving at each loss would leave next to nothing of the bandwidth, while a queue
// that builds up at a switch or in a receiver's socket shows in the delay before it overflows.  A
// retransmission timeout, where no signal comes back at all, still collapses the window.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/clock.h"

namespace nccl_ha::fabric {

class CongestionControl {
 public:
  struct Options {
    Duration target_delay;       ///< over the least round trip
    double window_initial = 10;  ///< segments (RFC 6928)
    double window_min = 1;
    double window_max = 1024;
  };
  explicit CongestionControl(const Options& options)
      : options_(options), window_(std::min(options.window_initial, options.window_max)) {}

  /// Segments that may be in flight, at least one.
  uint32_t window() const { return static_cast<uint32_t>(std::max(window_, 1.0)); }
  bool slow_start() const { return slow_start_; }

  /// `acked` segments were newly acknowledged; `rtt` is the newest sample, `was_full` says whether
  /// the window was what limited the sender (an unused window does not grow, RFC 7661).
  void on_ack(Instant now, uint32_t acked, Duration rtt, Duration min_rtt, bool was_full) {
    round_acked_ += acked;
    const Duration target = min_rtt + options_.target_delay;
    if (rtt > target) {
      slow_start_ = false;
      if (now - last_decrease_ >= rtt) {
        const double excess =
            static_cast<double>((rtt - target).count()) / static_cast<double>(rtt.count());
        // Not below the initial window: with so little in flight, delay says that a host was busy.
        if (window_ > options_.window_initial) {
          scale(1.0 - std::min(delay_gain * excess, decrease_max));
          window_ = std::max(window_, options_.window_initial);
        }
        last_decrease_ = now;
      }
    }
    // So a window that timeouts have collapsed grows again where the way has become longer.
    const double most =
        rtt > target ? std::min(options_.window_initial, options_.window_max) : options_.window_max;
    if (was_full && window_ < most) {
      window_ += slow_start_ ? acked : growth * acked / window_;
      window_ = std::min(window_, most);
    }
  }

  /// `lost` segments were found missing.  Reacts once per round trip to the loss share.
  void on_loss(Instant now, uint32_t lost, Duration rtt) {
    round_lost_ += lost;
    if (now - round_start_ < rtt || round_acked_ + round_lost_ < round_segments_min) {
      return;
    }
    const double share =
        static_cast<double>(round_lost_) / static_cast<double>(round_acked_ + round_lost_);
    if (share > slow_start_loss) {
      slow_start_ = false;
    }
    scale(1.0 - std::min(share, decrease_max));
    round_start_ = now;
    round_acked_ = 0;
    round_lost_ = 0;
  }

  /// Nothing came back for a whole timeout.
  void on_timeout() {
    window_ = std::max(options_.window_min, window_ / 4);
    slow_start_ = true;
  }

 private:
  static constexpr double delay_gain = 0.8;    // Swift's beta
  static constexpr double decrease_max = 0.5;  // Swift's max_mdf
  static constexpr double growth = 2.0;        // segments per round trip
  static constexpr double slow_start_loss = 0.1;
  static constexpr uint64_t round_segments_min = 16;

  void scale(double factor) { window_ = std::max(options_.window_min, window_ * factor); }

  Options options_;
  double window_;
  bool slow_start_ = true;
  Instant last_decrease_{};
  Instant round_start_{};
  uint64_t round_acked_ = 0;
  uint64_t round_lost_ = 0;
};

}  // namespace nccl_ha::fabric
