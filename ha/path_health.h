// Whether a path still shows heartbeats, how long it may do without, and whether that is its own
// fault.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "ha/invariant.h"
#include "runtime/base/instant.h"

namespace nccl_ha::ha {

/// Judges one path by what gets through.  A path is looked at now and then; what was open at one
/// look and is answered by the next one teaches how long it usually stays silent under work, and
/// silence of several times that makes it suspect: a false alarm costs a fence and what was under
/// way, waiting costs everybody's time.
///
/// Silence alone says nothing of a path: this process may not have run, or the peer's not.  Time in
/// which this one did not run is not counted.  For the other one a witness is needed: something
/// that came another way and shows that the peer ran while this path stayed silent.  At half the
/// limit the caller is told to ask for one, and a while after its answer for a second one: a peer
/// that gets a moment between two standstills may have time for the one way and not for the other.
/// Without witnesses the verdict takes much longer.
///
/// Acts on nothing, and takes the time from its caller.  One thread.
class PathHealth {
 public:
  struct Limits {
    Duration heartbeat{};     ///< between two heartbeats; 0: none are due
    Duration soft_timeout{};  ///< the longest that work may stay unanswered, whatever is usual
    Duration alone{};         ///< the same for a path without another one, and for heartbeats
    Duration unwitnessed{};   ///< the same while nothing shows that the peer runs
  };
  /// What is known of the other ways to the peer.
  struct Elsewhere {
    bool usable = false;    ///< another path is, and is steady
    uint64_t evidence = 0;  ///< grows whenever something comes from there that the peer did by now
  };
  enum class Finding : uint8_t {
    fine,    ///< so far
    ask,     ///< silent for half of what is allowed: ask on every way
    silent,  ///< for longer than it may be: it counts as dead
  };
  /// Posted and not completed at the moment of a look.
  struct Open {
    uint32_t writes = 0;  ///< all of them
    uint32_t pulses = 0;  ///< those among them that are nothing but heartbeats
    uint64_t bytes = 0;   ///< of data
  };

  /// A path was taken into use.  What is known of its network's speed stays known, and that it was
  /// silent: where nothing is wrong but that the network is slow, each path that takes the other's
  /// place would else be given up before the same work is done.
  void begin(const Moment& now) {
    flaps_ = begun_ && !has_lasted();
    begun_ = true;
    life_begun_ = life_;
    alive_at_ = now;
    waited_ = false;
    suspect_ = false;
    silence_ = {};
    asked_.reset();
  }
  /// Something got through, in either direction.
  void show_life() { ++life_; }
  /// What takes another path's place should be: a path that was out of use again before the third
  /// answer has to show three in a row, which one that fails does not get to.
  bool steady() const { return !flaps_ || has_lasted(); }
  /// A part of something did; not more than once for each look.
  void show_progress() { life_ += life_ == life_seen_ ? 1 : 0; }
  /// Something was written whose completion nobody sees.
  void announce() { announced_ = true; }
  /// True if nothing has come since such a thing was written: the caller gives a heartbeat, and
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
  /// A heartbeat was given.
  void on_heartbeat_timer(const Moment& now) {
    if (!waited_) {
      waited_ = true;
      alive_at_ = now;
    }
  }
  /// Looks at what has come since the last look.
  Finding look(const Moment& now, const Open& open, const Limits& limits,
               const Elsewhere& elsewhere);
  /// The next look may be as late as this, if something is waited for and `busy` wants none before.
  std::optional<Instant> next_look(const Open& open, const Limits& limits, bool other_usable) const;
  /// It should be looked at often; an idle one costs no more than its heartbeats.
  bool busy(const Open& open) const {
    return moved_ || announced_ || asked_ || open.writes > (suspect_ ? 0 : open.pulses);
  }

  /// How much has got through; only differences mean something.
  uint64_t life() const { return life_; }
  /// When life was last seen, or nothing was waited for.
  Instant alive_at() const { return alive_at_.now; }
  /// How long this process ran since then.
  Duration silent_for(const Moment& now) const { return now.ran_since(alive_at_); }
  /// Of the last look that found the path silent: how long it may have been.
  Duration allowed() const { return allowed_; }
  /// The peer ran while the path stayed silent, and still did a while later.
  bool witnessed() const { return asked_ && asked_->answers == answers_needed; }
  /// The longest that it lately stayed silent under work: a decaying maximum.
  Duration usual_silence() const { return silence_; }
  /// So long it may be silent in any case, as it was given up for less before.
  Duration patience() const { return patience_; }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  static constexpr unsigned answers_needed = 2;
  static constexpr uint64_t answers_of_steady = 3;  ///< seeds/004, 4
  bool has_lasted() const { return life_ - life_begun_ >= answers_of_steady; }
  void on_answer(const Moment& now, const Open& open, const Limits& limits);
  Duration limit(const Open& open, const Limits& limits, bool other_usable) const;
  /// For a large write, which completes as a whole, on a slow network long after it was posted.
  Duration for_bytes(const Open& open) const;
  bool judge(Duration silent, const Elsewhere& elsewhere);
  bool asks(Duration silent, const Elsewhere& elsewhere);
  Duration usual_limit(const Open& open, const Limits& limits, Duration alone) const;

  /// The peer was asked, on every way, whether it runs.
  struct Asked {
    Duration after{};           ///< of silence, the last time
    uint64_t evidence = 0;      ///< when what is open was asked first
    bool open = true;           ///< an answer is waited for
    unsigned answers = 0;       ///< that have come
    Duration answered_after{};  ///< of silence, seen by a look: the last one
  };

  uint64_t life_ = 0;
  uint64_t life_seen_ = 0;   ///< at the last look
  uint64_t life_begun_ = 0;  ///< when the path was taken into use
  bool begun_ = false;
  bool flaps_ = false;  ///< the path before did not last
  Moment alive_at_{};
  bool waited_ = false;        ///< at the last look something was open
  bool worked_ = false;        ///< and not only heartbeats
  bool moved_ = false;         ///< between the last two looks there was traffic
  bool suspect_ = false;       ///< its answer is awaited impatiently
  bool announced_ = false;     ///< something was written whose completion nobody sees
  uint64_t bytes_seen_ = 0;    ///< open at the last look
  uint64_t bytes_proven_ = 0;  ///< so many at once did not keep it silent for long
  Duration silence_{};
  Duration patience_{};
  std::optional<Asked> asked_;
  Duration allowed_{};
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
