// Which of the ways to a peer is dialled next, and when.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ha/peer_verdict.h"
#include "ha/sweep.h"
#include "runtime/base/clock.h"

namespace nccl_ha::ha {

/// Each way is dialled for as long as a network takes that has just come back, and the next one
/// begins a moment later, whatever becomes of it: which of them works nobody knows, and what works
/// answers within milliseconds.  Those that never led to the peer are dialled less and less often,
/// and few of them beside each other.
/// Stays with one that tells the most (PeerVerdict).  Takes the time from its caller.  One thread.
class Redial {
 public:
  using Answer = PeerVerdict::Answer;

  /// A way beneath which the network is gone does not answer at all, and a second later it may:
  /// so long a kernel waits before it asks again where a neighbour is, or sends a first segment
  /// again.
  static constexpr Duration longest_dial = std::chrono::seconds(1);
  /// From one dial to the next of a way that has led to the peer, at most.
  static constexpr Duration usual_wait = std::chrono::seconds(1);
  /// So many dials of ways that have not are under way: the oldest ends for the next.  By then a
  /// kernel has begun to look for the neighbour, and goes on with it.
  static constexpr size_t unproven_max = 4;
  /// From one dial to the next of such a way, for each way that there is.
  static constexpr Duration wait_for_each = std::chrono::milliseconds(250);

  /// Dialling begins at `now` with way `first` of `ways`; what was found out before means nothing
  /// any more, and what is under way is forgotten.
  void begin(size_t ways, size_t first, Instant now) {
    verdict_.clear();
    ways_.assign(ways, Way{.due = now});
    first_ = first;
    next_ = now;
    dialled_ = 0;
  }

  /// What should hold and does not; null: nothing (Invariants).
  const char* broken() const { return verdict_.broken(); }
  size_t dialled() const { return dialled_; }
  /// When there is a way to dial; nullopt: all of them are being.
  std::optional<Instant> next() const {
    std::optional<Instant> next;
    for (const Way& way : ways_) {
      const Instant due = std::max(way.due, next_);
      if (!way.under_way && (!next || due < *next)) {
        next = due;
      }
    }
    return next;
  }
  /// The way that is to be dialled now, if any; it is, until on_answer().
  std::optional<size_t> take(Instant now) {
    std::optional<size_t> best;
    for (size_t i = 0; now >= next_ && i < ways_.size(); ++i) {
      const size_t at = (first_ + i) % ways_.size();
      const Way& way = ways_[at];
      if (!way.under_way && now >= way.due && (!best || way.due < ways_[*best].due)) {
        best = at;
      }
    }
    if (best) {
      ways_[*best].under_way = true;
      ways_[*best].dialled = now;
      next_ = now + Sweep::limit(ways_.size(), 0, longest_dial);
      ++dialled_;
    }
    return best;
  }
  /// A dial from before begin() goes on.
  void keep(size_t at, Instant now) {
    ways_[at].under_way = true;
    ways_[at].dialled = now;
  }
  /// How dialling `at` ended.  `proven`, `life`: as PeerVerdict::on_answer() has them.  True: the
  /// peer is dead, and nothing more is dialled.
  [[nodiscard]] bool on_answer(size_t at, Answer answer, bool proven, uint64_t life, Instant now) {
    if (verdict_.on_answer(answer, proven, life, now)) {
      return true;
    }
    Way& way = ways_[at];
    way.under_way = false;
    if (verdict_.stays(answer, proven)) {
      way.due = now + verdict_.pause();
      return false;
    }
    way.due = std::max(way.dialled + way.wait, now);
    const auto longest = wait_for_each * static_cast<int64_t>(ways_.size());
    way.wait =
        proven ? usual_wait : std::clamp(2 * way.wait, usual_wait, std::max(usual_wait, longest));
    return false;
  }
  /// The peer is there, which is all that was asked: for a while nobody is.
  void rest(Instant now) {
    verdict_.clear();
    for (Way& way : ways_) {
      way = {.due = now + usual_wait};
    }
  }

 private:
  struct Way {
    bool under_way = false;
    Instant dialled{};
    Instant due{};
    Duration wait = usual_wait;
  };
  PeerVerdict verdict_;
  std::vector<Way> ways_;
  size_t first_ = 0;
  Instant next_{};  ///< no way is dialled before
  size_t dialled_ = 0;
};

}  // namespace nccl_ha::ha
