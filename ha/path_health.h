// Whether a path still shows signs of life, and how long it may do without.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/clock.h"

namespace nccl_ha::ha {

/// Judges one path by what gets through.  A path is looked at now and then; what was open at one
/// look and is answered by the next one teaches how long it usually stays silent under work, and
/// silence of several times that makes it suspect: a false alarm costs a fence and what was under
/// way, waiting costs everybody's time.  Acts on nothing, and takes the time from its caller.  One
/// thread.
class PathHealth {
 public:
  struct Limits {
    Duration heartbeat{};     ///< between two signs of life
    Duration soft_timeout{};  ///< the longest that work may stay unanswered, whatever is usual
  };
  /// Posted and not completed at the moment of a look.
  struct Open {
    uint32_t writes = 0;  ///< all of them
    uint32_t pulses = 0;  ///< those among them that are nothing but signs of life
    uint64_t bytes = 0;   ///< of data
  };

  /// A path was taken into use.  What is known of its network's speed stays known.
  void begin(Instant now) {
    alive_at_ = now;
    waited_ = false;
    suspect_ = false;
    silence_ = {};
  }
  /// Something got through, in either direction.
  void show_life() { ++life_; }
  /// Something was written whose completion nobody sees.
  void announce() { announced_ = true; }
  /// True if nothing has come since such a thing was written: the caller gives a sign of life, and
  /// its answer is awaited impatiently.  Once for each look.
  bool take_unanswered() {
    if (!announced_ || life_ != life_seen_) {
      return false;
    }
    announced_ = false;
    suspect_ = true;
    return true;
  }
  /// Others found no answer there: this one's is awaited impatiently.
  void suspect() { suspect_ = true; }
  bool suspected() const { return suspect_; }
  /// A sign of life was given.
  void on_pulse(Instant now) {
    if (!waited_) {
      waited_ = true;
      alive_at_ = now;
    }
  }
  /// True if the path has been silent for longer than it may be: it counts as dead, if there is
  /// another one.
  bool look(Instant now, const Open& open, const Limits& limits);
  /// It should be looked at often; an idle one costs no more than its signs of life.
  bool busy(const Open& open) const {
    return moved_ || announced_ || open.writes > (suspect_ ? 0 : open.pulses);
  }

  /// How much has got through; only differences mean something.
  uint64_t life() const { return life_; }
  /// When life was last seen, or nothing was waited for.
  Instant alive_at() const { return alive_at_; }
  /// The longest that it lately stayed silent under work: a decaying maximum.
  Duration usual_silence() const { return silence_; }

 private:
  void on_answer(Instant now, const Open& open, const Limits& limits);
  Duration limit(const Open& open, const Limits& limits) const;

  uint64_t life_ = 0;
  uint64_t life_seen_ = 0;  ///< at the last look
  Instant alive_at_{};
  bool waited_ = false;        ///< at the last look something was open
  bool worked_ = false;        ///< and not only signs of life
  bool moved_ = false;         ///< between the last two looks there was traffic
  bool suspect_ = false;       ///< its answer is awaited impatiently
  bool announced_ = false;     ///< something was written whose completion nobody sees
  uint64_t bytes_seen_ = 0;    ///< open at the last look
  uint64_t bytes_proven_ = 0;  ///< so many at once did not keep it silent for long
  Duration silence_{};
};

}  // namespace nccl_ha::ha
