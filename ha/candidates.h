// Which pair of ends each of a connection's fallback paths takes, and which are left alone for a
// while.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "ha/invariant.h"
#include "ha/mutation.h"
#include "ha/shadow.h"
#include "runtime/base/clock.h"

namespace nccl_ha::ha {

/// The ranked pairs (rank_shadows), of which each shadow of a connection takes one in turn.  No two
/// shadows share an end, as they would fail together.  A pair that cannot be joined makes room for
/// the next one; one that has worked is tried again between any two others, as what it lacks may be
/// back.  An end whose device does not take the connection's memory is rejected with all its pairs,
/// until that is forgotten.  Takes the time from its caller.  One thread.
class ShadowCandidates {
 public:
  /// A rejected end is tried again after so long, and after twice as long with each further time.
  static constexpr Duration forget_after = std::chrono::seconds(30);
  static constexpr unsigned doublings_max = 6;
  /// Links that are back give a shadow another pair not more often than this: three attempts.
  static constexpr Duration turn_interval = std::chrono::seconds(9);

  enum class End : uint8_t { local, remote };

  ShadowCandidates() = default;
  ShadowCandidates(std::vector<RailPair> ranked, size_t shadows)
      : pairs_(std::move(ranked)), shadows_(shadows) {}

  bool empty() const { return pairs_.empty(); }
  /// The next pair for a shadow to try: the one at hand unless it is to be left alone.  Nothing:
  /// all are rejected or share an end with another shadow's, until next_at().
  std::optional<RailPair> choose(size_t shadow, Instant now) {
    Shadow& mine = shadows_[shadow];
    mine.holds.reset();
    mine.joined = false;
    if (mine.proven == mine.current && !available(pairs_[mine.current], now)) {
      mine.current = mine.after;
    }
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const size_t at = (mine.current + i) % pairs_.size();
      if (available(pairs_[at], now)) {
        invariants_.hold(is_alone(shadow, pairs_[at]), "no two shadows share an end");
        mine.current = at;
        mine.holds = at;
        return pairs_[at];
      }
    }
    return std::nullopt;
  }
  /// When a shadow for which there is nothing may look again.
  Instant next_at(Instant now) const {
    Instant first = Instant::max();
    for (const RailPair& pair : pairs_) {
      const Instant at = free_at(pair);
      first = std::min(first, at > now ? at : now + forget_after);
    }
    return first;
  }
  /// The pair that was chosen was joined.
  void worked(size_t shadow) {
    Shadow& mine = shadows_[shadow];
    mine.current = mine.holds.value_or(mine.current);
    mine.joined = true;
    mine.after = 0;
    if (!mutated(Mutation::proven_pair_forgotten)) {
      mine.proven = mine.current;
    }
  }
  /// The pair at hand could not be joined.  `urgent`: the connection has no path at all, and what
  /// is missing most is a pair that nobody has tried.
  void pass_over(size_t shadow, bool urgent = false) {
    Shadow& mine = shadows_[shadow];
    if (pairs_.empty()) {
      return;
    }
    if (urgent && !mutated(Mutation::proven_pair_insisted)) {
      mine.current = following(mine.current);
      return;
    }
    if (mine.proven == mine.current) {
      mine.current = mine.after == mine.current ? following(mine.after) : mine.after;
      return;
    }
    mine.after = following(mine.current);
    mine.current = mine.proven.value_or(mine.after);
  }
  /// Whether links that are back change what a shadow tries next.
  enum class Turn : uint8_t {
    none,     ///< no
    at_hand,  ///< no, but the pair at hand has one of them
    turned,   ///< another pair is at hand now
  };
  /// Ends have their links back.  Of the pairs with such an end the one that worked last, or else
  /// the best, has the next turn, unless a better one is being tried whose own link came back just
  /// before (`promising`).  Not more often than turn_interval: an end that comes and goes does not
  /// keep the others from their turns.  A shadow that merely tries an end of that pair has to give
  /// it up (lost()).
  template <class IsBack>
  Turn turn_to(size_t shadow, End end, IsBack is_back, Instant now, bool promising) {
    Shadow& mine = shadows_[shadow];
    std::optional<size_t> wanted;
    for (size_t at = 0; at < pairs_.size(); ++at) {
      const RailPair& pair = pairs_[at];
      if (is_back(end == End::local ? pair.local : pair.remote) && free_at(pair) <= now &&
          may_take(shadow, pair, now) && (!wanted || mine.proven == at)) {
        wanted = at;
      }
    }
    if (!wanted || mutated(Mutation::links_turn_nothing)) {
      return Turn::none;
    }
    const bool at_hand = *wanted == mine.current;
    if (!at_hand && ((promising && *wanted > mine.current && wanted != mine.proven) ||
                     now < mine.may_turn_at)) {
      return Turn::none;
    }
    if (!at_hand) {
      mine.may_turn_at = now + turn_interval;
      if (mine.proven != mine.current) {
        mine.after = mine.current;  // goes on there later
      }
      mine.current = *wanted;
    }
    mine.holds = wanted;
    mine.keeps_until = now + turn_interval;
    for (size_t i = 0; i < shadows_.size(); ++i) {
      if (i != shadow && holds_end_of(shadows_[i], pairs_[*wanted])) {
        shadows_[i].holds.reset();
        shadows_[i].lost = true;
      }
    }
    return at_hand ? Turn::at_hand : Turn::turned;
  }
  /// What the shadow tries is another one's now.  Once.
  bool lost(size_t shadow) { return std::exchange(shadows_[shadow].lost, false); }
  /// The better ones may be back.
  void begin_anew(size_t shadow) { shadows_[shadow].current = 0; }
  /// The device at that end does not take the connection's memory.  True: for the first time.
  bool reject(End end, size_t rail, Instant now) {
    auto& ends = rejected_[static_cast<size_t>(end)];
    ends.resize(std::max(ends.size(), rail + 1));
    Rejection& one = ends[rail];
    if (!mutated(Mutation::rejection_unheeded)) {
      one.free_at = mutated(Mutation::rejection_for_ever)
                        ? Instant::max()
                        : now + forget_after * (1 << std::min(one.times, doublings_max));
    }
    invariants_.hold(one.free_at > now && one.free_at <= now + forget_after * (1 << doublings_max),
                     "a rejected end is left alone for a bounded time");
    return one.times++ == 0;
  }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  struct Rejection {
    unsigned times = 0;
    Instant free_at = Instant::min();
  };
  Instant free_at(End end, size_t rail) const {
    const auto& ends = rejected_[static_cast<size_t>(end)];
    return rail < ends.size() ? ends[rail].free_at : Instant::min();
  }
  Instant free_at(const RailPair& pair) const {
    return std::max(free_at(End::local, pair.local), free_at(End::remote, pair.remote));
  }

  struct Shadow {
    size_t current = 0;            ///< at hand: to be tried next, or being tried
    std::optional<size_t> proven;  ///< the last one that was joined
    size_t after = 0;              ///< the next one to try beside it
    std::optional<size_t> holds;   ///< chosen: not for others
    bool joined = false;           ///< and it works, for all that is known
    bool lost = false;             ///< another one has it
    Instant may_turn_at = Instant::min();
    Instant keeps_until = Instant::min();  ///< its link came back just before
  };
  bool holds_end_of(const Shadow& one, const RailPair& pair) const {
    return one.holds &&
           (pairs_[*one.holds].local == pair.local || pairs_[*one.holds].remote == pair.remote);
  }
  bool taken(const RailPair& pair) const {
    return std::any_of(shadows_.begin(), shadows_.end(), [&](const Shadow& one) {
      return holds_end_of(one, pair) && !mutated(Mutation::shadows_share_an_end);
    });
  }
  bool available(const RailPair& pair, Instant now) const {
    return free_at(pair) <= now && !taken(pair);
  }
  /// No other shadow works over an end of the pair, or is about to.
  bool may_take(size_t shadow, const RailPair& pair, Instant now) const {
    for (size_t i = 0; i < shadows_.size(); ++i) {
      const Shadow& other = shadows_[i];
      if (i != shadow && holds_end_of(other, pair) && (other.joined || now < other.keeps_until)) {
        return false;
      }
    }
    return true;
  }
  size_t following(size_t at) const { return (at + 1) % pairs_.size(); }
  bool is_alone(size_t shadow, const RailPair& pair) const {
    for (size_t i = 0; i < shadows_.size(); ++i) {
      if (i != shadow && holds_end_of(shadows_[i], pair)) {
        return false;
      }
    }
    return true;
  }

  std::vector<RailPair> pairs_;
  std::vector<Shadow> shadows_;
  std::array<std::vector<Rejection>, 2> rejected_;
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
