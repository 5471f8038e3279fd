// When the turns of a worker look at what costs: the clock, timers, and streams.
//
// Looking at a clock takes as long as looking into several empty queues, and a look at streams
// enters the kernel.  Full turns know the time anyway.  Quick ones, made by callers one after the
// other, read it now and then: counted in turns, or where the processor's ticks tell how much time
// has passed, by those.
#pragma once

#include <cstdint>

#include "runtime/base/instant.h"

namespace nccl_ha {

/// Owner thread only.  Takes time and ticks from its caller.
class TurnPacer {
 public:
  /// After so many quick turns the clock was read, if ticks have not told before.
  static constexpr unsigned turns_to_see_time = 64;

  /// `counts_ticks`: the ticks that it is given go on with time; else they are always 0.
  /// `stream_period`: from one look of quick turns at streams to the next, while nobody asks for
  /// more.
  TurnPacer(bool counts_ticks, Duration stream_period)
      : counts_ticks_(counts_ticks), stream_period_(stream_period) {}

  bool counts_ticks() const { return counts_ticks_; }

  /// Once for each quick turn: it is time to read the clock.
  bool clock_due(uint64_t ticks) {
    return --until_clock_ == 0 || ticks - looked_ticks_ >= look_ticks_;
  }
  /// Now, for who would have to do it in one of the next turns, when it is less convenient.
  bool clock_soon_due(uint64_t ticks) const {
    return until_clock_ < look_early_below_ || ticks - looked_ticks_ >= look_ticks_ / 2;
  }
  /// The clock was read.  `relaxed`: nobody waits for what software does by itself.
  void on_clock(Instant now, uint64_t ticks, bool relaxed);

  /// Quick turns that know the time: timers have to be looked at.
  bool take_timers_due(Instant now, bool relaxed) {
    if (now < timer_look_) {
      return false;
    }
    timer_look_ = now + (relaxed ? relaxed_timer_period : timer_period);
    return true;
  }
  /// Quick turns, when timers were looked at: and so have streams.
  bool take_streams_due(Instant now) {
    if (now < stream_look_) {
      return false;
    }
    stream_look_ = now + stream_period_;
    return true;
  }
  /// Full turns, once for each.
  bool take_full_turn_streams_due() {
    const bool wanted = take_stream_turn();
    if (!wanted && ++stream_countdown_ < full_turns_per_stream_look) {
      return false;
    }
    stream_countdown_ = 0;
    return true;
  }

  /// For that many turns streams are looked at every time.
  void want_stream_turns(unsigned turns) {
    stream_turns_ = turns > stream_turns_ ? turns : stream_turns_;
  }
  bool wants_stream_turn() const { return stream_turns_ != 0; }
  /// One of those, if any is left.
  bool take_stream_turn() {
    if (stream_turns_ == 0) {
      return false;
    }
    --stream_turns_;
    return true;
  }

 private:
  static constexpr unsigned full_turns_per_stream_look = 64;
  // How often quick turns read the clock, in turns, and look at timers: seldom where nobody waits
  // for what software does by itself.  What they wait for may come later by such a look, so that
  // clock_soon_due() takes it from them.
  static constexpr unsigned clock_period = 16;
  static constexpr unsigned relaxed_clock_period = turns_to_see_time;
  static constexpr unsigned relaxed_turns_before_early_look = 16;
  // The same where ticks tell: what is left of them if they should not.
  static constexpr unsigned ticking_clock_period = 256;
  static constexpr Duration timer_period = std::chrono::microseconds(200);
  static constexpr Duration relaxed_timer_period = std::chrono::milliseconds(1);
  // Of the rate of ticks, which is measured again and again.
  static constexpr Duration measure_period = std::chrono::milliseconds(10);
  static constexpr double fastest = 16;  ///< ticks per nanosecond; more is a count that jumped

  void measure_ticks(Instant now, uint64_t ticks);

  const bool counts_ticks_;
  const Duration stream_period_;
  unsigned until_clock_ = clock_period;  ///< quick turns
  unsigned look_early_below_ = 0;        ///< with fewer left the clock is soon due
  uint64_t looked_ticks_ = 0;            ///< when the clock was read last
  uint64_t look_ticks_ = UINT64_MAX;     ///< from one reading to the next
  double ticks_per_ns_ = 0;              ///< 0: not known yet
  uint64_t measured_ticks_ = 0;          ///< when that was measured last
  Instant measured_{};
  Instant timer_look_{};  ///< of quick turns: as soon as the time is known to be this
  Instant stream_look_{};
  unsigned stream_countdown_ = 0;  ///< full turns since the last look at streams
  unsigned stream_turns_ = 0;      ///< that were asked for and not made
};

}  // namespace nccl_ha
