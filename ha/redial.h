// Which of the ways to a peer is dialled next, and when.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "ha/peer_verdict.h"
#include "ha/sweep.h"
#include "runtime/base/clock.h"

namespace nccl_ha::ha {

/// Goes through the ways one after the other, in sweeps (ha/sweep.h) with a pause between; stays
/// with one that tells the most (PeerVerdict).  Takes the time from its caller.  One thread.
class Redial {
 public:
  using Answer = PeerVerdict::Answer;
  struct Next {
    bool dead = false;  ///< the peer is: nothing more is dialled
    Duration in{};      ///< until way() is dialled
  };

  /// Between ways of which the first one failed at once.
  static constexpr Duration next_way = std::chrono::milliseconds(10);
  /// A way beneath which the network is gone does not answer at all.
  static constexpr Duration longest_dial = std::chrono::seconds(1);

  /// Dialling begins with way `first` of `ways`; what was found out before means nothing any more.
  void begin(size_t ways, size_t first) {
    verdict_.clear();
    ways_ = ways;
    way_ = first;
    tried_ = 0;
    sweeps_ = 0;
  }
  /// The list of ways has changed, which now begins with the best one.
  void reorder(size_t ways) {
    ways_ = ways;
    way_ = 0;
  }

  /// What should hold and does not; null: nothing (Invariants).
  const char* broken() const { return verdict_.broken(); }
  size_t way() const { return way_; }
  size_t tried() const { return tried_; }  ///< ways, since the last pause
  void on_dial() { ++tried_; }
  /// What dialling way() may take: where it is the only one, nothing else waits for it.
  Duration limit() const {
    return ways_ == 1 ? longest_dial : Sweep::limit(ways_, sweeps_, longest_dial);
  }
  /// How dialling way() ended.  `proven`, `life`: as PeerVerdict::on_answer() has them.
  [[nodiscard]] Next on_answer(Answer answer, bool proven, uint64_t life, Instant now) {
    if (verdict_.on_answer(answer, proven, life, now)) {
      return {true, {}};
    }
    if (!verdict_.stays(answer, proven)) {
      way_ = (way_ + 1) % ways_;
      if (tried_ < ways_) {
        return {false, next_way};
      }
    }
    tried_ = 0;
    ++sweeps_;
    return {false, verdict_.pause()};
  }

 private:
  PeerVerdict verdict_;
  size_t ways_ = 1;
  size_t way_ = 0;
  size_t tried_ = 0;
  unsigned sweeps_ = 0;
};

}  // namespace nccl_ha::ha
