// Whether the process at the other end of a connection is still there, judged by what became of
// attempts to reach it and by life on the connection's paths.
//
// A lost stream proves nothing: firewalls forget connections, and networks beneath them fail.  Dead
// is a peer whose own host says so: that nobody listens where it did, or that whoever answers does
// not know the connection.  Pure; one thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "ha/invariant.h"
#include "runtime/base/clock.h"

namespace nccl_ha::ha {

class PeerVerdict {
 public:
  /// How an attempt ended.
  enum class Answer : uint8_t {
    present,  ///< the peer itself answered
    absent,   ///< a process that speaks the protocol does not know the connection
    refused,  ///< the host says that nobody listens there
    broken,   ///< somebody took the stream and closed it without a word
    silence   ///< no answer, or no route
  };

  /// `proven`: the way is known to lead to the peer, so that whoever answers there speaks for its
  /// host.  `life`: what has got through all paths so far; only differences mean something.  True:
  /// the peer is dead.
  [[nodiscard]] bool on_answer(Answer answer, bool proven, uint64_t life, Instant now) {
    const bool refused_before = refused_ && now - refused_at_ >= refusals_apart;
    const bool dead = judge(answer, proven, life, now);
    invariants_.hold(!dead || proven, "only who is known to be the peer's host speaks for it");
    invariants_.hold(!dead || answer == Answer::absent || refused_before,
                     "a host says twice that nobody listens there");
    return dead;
  }

  /// What was found out before means nothing any more.
  void clear() {
    refused_ = false;
    hints_ = 0;
  }

  /// After such an answer the same way is tried again before others: it tells the most.
  bool stays(Answer answer, bool proven) const {
    return proven && (answer == Answer::refused || answer == Answer::broken) &&
           hints_ <= hints_followed;
  }
  /// When to try again after that, or after all ways have been tried.  A firewall may refuse for
  /// days while the paths live: it is followed soon only so many times.
  Duration pause() const {
    return hints_ != 0 && hints_ <= hints_followed ? refusals_apart : usual_pause;
  }

  /// A process that is being replaced at its port, or a host that is overloaded, may refuse once.
  static constexpr Duration refusals_apart = std::chrono::milliseconds(200);
  static constexpr Duration usual_pause = std::chrono::seconds(1);
  static constexpr uint32_t hints_followed = 4;

  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  bool judge(Answer answer, bool proven, uint64_t life, Instant now) {
    if (answer == Answer::present) {
      clear();
      return false;
    }
    if (answer == Answer::absent) {
      return proven;
    }
    if (answer == Answer::silence || !proven) {
      return false;
    }
    ++hints_;
    if (answer == Answer::broken) {
      return false;
    }
    if (!refused_ || life != life_then_) {
      refused_ = true;
      refused_at_ = now;
      life_then_ = life;
      return false;
    }
    return now - refused_at_ >= refusals_apart;
  }

  bool refused_ = false;  ///< once, and nothing spoke against it since
  Instant refused_at_{};
  uint64_t life_then_ = 0;
  uint32_t hints_ = 0;  ///< that the process may be gone, since clear()
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
