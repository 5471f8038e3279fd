// What a rail delivers: its rate and its delay, by what was acknowledged.  Pure.
//
// As BBR measures (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5),
// 2016): the rate is the highest of those delivered lately, the delay the lowest one seen lately.
// Rates are taken between acknowledgements while something is under way all the time.  Where the
// time begins with a post it has a delay in it, and the rate lies between two bounds: it counts as
// far as it contradicts what is known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "ha/windowed_best.h"
#include "runtime/base/instant.h"

namespace nccl_ha::ha {

/// Bytes are those of data, posted and not acknowledged.  Takes the time from its caller.  One
/// thread.
class RailEstimate {
 public:
  /// A rate is taken over at least so long: what comes back at one moment is no rate.
  static constexpr Duration sample_time = std::chrono::microseconds(200);
  /// How long the best rate is remembered: some round trips of a loaded rail.
  static constexpr Duration rate_window = std::chrono::milliseconds(12);
  static constexpr Duration delay_window = std::chrono::seconds(10);
  /// A rail that carried nothing for so long is taken for twice as fast, so that one that was slow
  /// for a while is tried again; for longer each time that it is as slow as before.
  static constexpr Duration patience_least = std::chrono::milliseconds(100);
  static constexpr unsigned patience_doublings = 6;

  RailEstimate() { begin(0); }
  /// Nothing is known but what the device says: bytes per second, 0: not even that.
  void begin(uint64_t expected_rate) {
    rates_.reset();
    delays_.reset();
    peak_ = ns_per_byte_of(expected_rate == 0 ? unknown_rate : expected_rate);
    ns_per_byte_ = peak_;
    patience_ = patience_least;
    probing_ = false;
    tried_at_ = 0;
    delivered_ = 0;
  }

  /// `open`: what was under way before.
  void on_posted(uint64_t bytes, uint64_t open, Instant now) {
    last_bytes_ = std::max<uint64_t>(bytes, 1);
    if (open == 0) {
      tried_at_ = optimism(now) < 1 ? ns_per_byte_ * optimism(now) : 0;
      limited_ = true;
      mark_ = now;
      delivered_ = 0;
    }
    if (!probing_) {
      probing_ = true;
      probe_at_ = now;
      probe_left_ = open + bytes;
    }
  }

  void on_delivered(uint64_t bytes, Instant now) {
    if (mark_ == Instant{}) {
      return;  // it was posted before anybody looked
    }
    if (probing_) {
      probe_left_ -= std::min(probe_left_, bytes);
      if (probe_left_ == 0) {
        probing_ = false;
        delays_.add(now, std::max(now - probe_at_, Duration(1)));
      }
    }
    delivered_ += bytes;
    last_at_ = now;
    const Duration took = now - mark_;
    if (took >= sample_time && delivered_ != 0) {
      take_rate(took, now);
      mark_ = now;
      delivered_ = 0;
      limited_ = false;
    }
  }

  /// Some of what was under way will not be acknowledged: its path failed.
  void on_lost(Instant now) {
    probing_ = false;
    mark_ = now;
    limited_ = true;
    delivered_ = 0;
  }

  /// Of the rate at hand; `open`: what is under way.
  double ns_per_byte(uint64_t open, Instant now) const {
    if (open == 0) {
      return ns_per_byte_ * optimism(now);
    }
    if (mark_ == Instant{}) {
      return ns_per_byte_;
    }
    // Nothing came for longer than it should take: it is slower than it was.
    const Duration waited = now - mark_ - (limited_ ? 2 * delay() : Duration{});
    if (waited <= sample_time) [[likely]] {
      return ns_per_byte_;
    }
    return std::max(ns_per_byte_, static_cast<double>(waited.count()) /
                                      static_cast<double>(delivered_ + last_bytes_));
  }
  /// Without what the rail may have become since it was last used.
  double measured_ns_per_byte(uint64_t open, Instant now) const {
    return open == 0 ? ns_per_byte_ : ns_per_byte(open, now);
  }
  /// Measurements so far.
  uint32_t rates_seen() const { return rates_seen_; }
  /// Bytes per second.
  uint64_t rate(uint64_t open, Instant now) const {
    return static_cast<uint64_t>(1e9 / ns_per_byte(open, now));
  }
  /// The rate was measured, and is no promise of the device.
  bool measured() const { return !rates_.empty(); }
  /// The least that a post took to be acknowledged, its own bytes included; 0: not known.
  Duration delay() const { return delays_.empty() ? Duration{} : delays_.best(); }

 private:
  static constexpr uint64_t unknown_rate = 1'250'000'000;
  static double ns_per_byte_of(uint64_t rate) { return 1e9 / static_cast<double>(rate); }

  /// What the time per byte may have shrunk to since the rail was last used; 1: to nothing less.
  double optimism(Instant now) const {
    const Duration idle = now - last_at_;
    if (idle < patience_ || last_at_ == Instant{}) [[likely]] {
      return 1;
    }
    const auto doublings = std::min<int64_t>(idle / patience_, 16);
    return std::max(peak_ / ns_per_byte_, 1.0 / static_cast<double>(int64_t{1} << doublings));
  }

  void take_rate(Duration took, Instant now) {
    ++rates_seen_;
    const double sample = static_cast<double>(took.count()) / static_cast<double>(delivered_);
    // With the rail's delay in it: the rail is somewhere between.
    const auto bytes = static_cast<double>(delivered_);
    const double least =
        limited_ ? std::max(0.0, static_cast<double>((took - delay()).count())) / bytes : sample;
    if (tried_at_ != 0) {
      patience_ = least > 2 * tried_at_
                      ? std::min(2 * patience_, patience_least * (1 << patience_doublings))
                      : patience_least;
      tried_at_ = 0;
    }
    if (!rates_.empty() && sample >= ns_per_byte_ && least <= ns_per_byte_) {
      return;
    }
    rates_.add(now, rates_.empty() || sample < ns_per_byte_ ? sample : least);
    ns_per_byte_ = rates_.best();
    peak_ = std::min(peak_, ns_per_byte_);
  }

  WindowedBest<double, std::less<>> rates_{rate_window};  ///< as time per byte
  WindowedBest<Duration, std::less<>> delays_{delay_window};
  double ns_per_byte_ = 1;
  double peak_ = 1;  ///< the best that was seen or promised
  uint32_t rates_seen_ = 0;
  // The rate that is being taken.
  Instant mark_{};
  uint64_t delivered_ = 0;  ///< since mark_
  uint64_t last_bytes_ = 0;
  bool limited_ = false;  ///< it began when nothing was under way
  Instant last_at_{};     ///< of the last acknowledgement
  // The delay that is being taken.
  bool probing_ = false;
  Instant probe_at_{};
  uint64_t probe_left_ = 0;
  // Whether a rail that was slow is so still.
  Duration patience_ = patience_least;
  double tried_at_ = 0;  ///< the time per byte that it was given a chance for; 0: none
};

}  // namespace nccl_ha::ha
