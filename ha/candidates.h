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
#include "ha/shadow.h"
#include "ha/sweep.h"
#include "runtime/base/clock.h"

namespace nccl_ha::ha {

/// The ranked pairs (rank_shadows), of which each shadow of a connection takes one in turn.  No two
/// shadows share the NIC of an end, as they would fail together.  Two that find nothing could so
/// keep each other from the only pair that works: one that has found nothing in a whole sweep takes
/// what later ones merely try, and one that looks for a better pair what any other does.  A pair
/// that cannot be joined makes room for the next one; one that has worked is tried again between
/// any two others, as what it lacks may be back.  A NIC that does not take the connection's memory
/// is rejected with all its pairs, until that is forgotten.  A shadow goes through the pairs in
/// sweeps: the first one gives each pair a moment, later ones give more, and its caller waits
/// between two of them.  Takes the time from its caller.  One thread.
class ShadowCandidates {
 public:
  /// A rejected end is tried again after so long, and after twice as long with each further time.
  static constexpr Duration forget_after = std::chrono::seconds(30);
  static constexpr unsigned doublings_max = 6;
  /// Links that are back give a shadow another pair not more often than this: an attempt takes at
  /// most 3 s, so that two others have theirs in between.
  static constexpr Duration turn_interval = std::chrono::seconds(12);
  /// What works comes up within milliseconds; ARP takes a second.
  static constexpr Duration most_of_an_attempt = std::chrono::seconds(1);
  /// The peer's address may have changed meanwhile, which the next attempt finds out.
  static constexpr Duration longest_attempt = std::chrono::seconds(3);

  enum class End : uint8_t { local, remote };

  ShadowCandidates() = default;
  ShadowCandidates(std::vector<RailPair> ranked, size_t shadows)
      : pairs_(std::move(ranked)), shadows_(shadows) {}

  /// Such a pair comes before this one, is not rejected, and no other shadow works over a NIC of
  /// it, or tries this very pair.
  template <class IsSuch>
  bool any_better(size_t shadow, const RailPair& than, Instant now, IsSuch is_such) const {
    for (size_t at = 0; at < pairs_.size() && pairs_[at] != than; ++at) {
      const bool tried = std::any_of(shadows_.begin(), shadows_.end(),
                                     [at](const Shadow& one) { return one.holds == at; });
      if (!tried && is_such(pairs_[at]) && free_at(pairs_[at]) <= now &&
          may_take(shadow, pairs_[at], now)) {
        return true;
      }
    }
    return false;
  }
  /// The pair for a shadow to try.  Nothing: all are rejected or share an end with another
  /// shadow's, until next_at().
  std::optional<RailPair> choose(size_t shadow, Instant now) {
    Shadow& mine = shadows_[shadow];
    const std::optional<size_t> before = std::exchange(mine.holds, std::nullopt);
    mine.joined = false;
    if (mine.inserted && !available(shadow, *mine.inserted, now)) {
      drop_inserted(mine);
    }
    if (mine.inserted && (mine.urged || mine.in_turn)) {
      mine.holds = std::exchange(mine.inserted, std::nullopt);
      mine.in_turn = mine.urged = false;
    } else {
      for (size_t i = 0; i < pairs_.size() && !mine.holds; ++i) {
        const size_t at = (mine.next + i) % pairs_.size();
        if (available(shadow, at, now)) {
          mine.holds = mine.next = at;
          mine.in_turn = true;
        }
      }
    }
    if (!mine.holds) {
      return std::nullopt;
    }
    take_from_others(shadow, pairs_[*mine.holds]);
    invariants_.hold(!holds_another(shadow, pairs_[*mine.holds], shadows_.size()),
                     "no two shadows share an end");
    mine.chosen_at = now;
    begin_attempt(mine);
    if (mine.holds != before) {
      // What was taken from one before it would else be taken back.
      mine.keeps_until = mine.looks ? now + mine.limit : Instant::min();
    }
    return pairs_[*mine.holds];
  }
  /// The places of either host have changed: what is known of pairs that are still there stays.
  void renew(std::vector<RailPair> ranked) {
    const std::vector<RailPair> before = std::exchange(pairs_, std::move(ranked));
    const auto find_again = [&](std::optional<size_t>& pair) {
      const auto found =
          pair ? std::find(pairs_.begin(), pairs_.end(), before[*pair]) : pairs_.end();
      pair = found == pairs_.end() ? std::nullopt
                                   : std::optional(static_cast<size_t>(found - pairs_.begin()));
    };
    for (Shadow& shadow : shadows_) {
      find_again(shadow.inserted);
      find_again(shadow.proven);
      find_again(shadow.holds);
      shadow.urged = shadow.urged && shadow.inserted;
    }
    for (size_t i = 0; i < shadows_.size(); ++i) {
      begin_sweeps(i);
    }
  }
  /// How long the attempt over the pair that was chosen may take.
  Duration limit(size_t shadow) const { return shadows_[shadow].limit; }
  /// After pass_over(): another pair has its turn in this sweep.  Otherwise the sweep has ended,
  /// for a pair that has worked with a full attempt (not where it is `urgent`), and the next one
  /// begins.
  bool sweeps_on(size_t shadow, Instant now, bool urgent) {
    Shadow& mine = shadows_[shadow];
    if (mine.inserted && available(shadow, *mine.inserted, now)) {
      return true;
    }
    for (size_t at = mine.next; at < pairs_.size() && !mine.swept; ++at) {
      if (available(shadow, at, now)) {
        return true;
      }
    }
    if (mine.proven && !mine.proven_had_all && !urgent && available(shadow, *mine.proven, now)) {
      mine.swept = true;
      insert(mine, *mine.proven, true);
      return true;
    }
    const unsigned sweeps = mine.sweeps + 1;
    begin_sweeps(shadow);
    mine.sweeps = sweeps;
    return false;
  }
  /// All pairs have their turn anew, from the best one on and with short attempts.
  void begin_sweeps(size_t shadow) {
    Shadow& mine = shadows_[shadow];
    mine.next = 0;
    mine.sweeps = 0;
    mine.swept = mine.proven_had_all = mine.in_turn = mine.looks = false;
  }
  /// When a shadow for which there is nothing may look again.
  Instant next_at(Instant now) const {
    Instant first = Instant::max();
    for (const RailPair& pair : pairs_) {
      const Instant at = free_at(pair);
      first = std::min(first, at > now ? at : now + forget_after);
    }
    return pairs_.empty() ? now + forget_after : first;
  }
  /// The pair that was chosen was joined; `own`: over the fabric of the connection, which is
  /// remembered.  True: of the own fabric it is the first one.
  bool worked(size_t shadow, bool own = true) {
    Shadow& mine = shadows_[shadow];
    if (!mine.holds) {
      return false;
    }
    const bool first = own && !mine.proven;
    mine.joined = true;
    begin_sweeps(shadow);
    insert(mine, *mine.holds, true);  // the same at first when it fails
    if (own) {
      mine.proven = mine.holds;
    }
    return first;
  }
  /// What was joined works no more: until the shadow chooses again its NICs are anybody's.
  void ended(size_t shadow) {
    shadows_[shadow].joined = false;
    shadows_[shadow].holds.reset();
  }
  /// The pair that was chosen could not be joined.  `urgent`: the connection has no path at all,
  /// and what is missing most is a pair that nobody has tried.
  void pass_over(size_t shadow, bool urgent = false) {
    Shadow& mine = shadows_[shadow];
    if (pairs_.empty()) {
      return;
    }
    const size_t failed = std::exchange(mine.holds, std::nullopt).value_or(mine.next);
    mine.keeps_until = Instant::min();
    if (mine.inserted == failed) {
      drop_inserted(mine);
    }
    if (mine.in_turn || mine.next == failed) {
      turn_past(mine, failed);
    }
    if (mine.proven && mine.proven != failed && mine.in_turn && !mine.inserted && !urgent) {
      insert(mine, *mine.proven, false);
    }
  }
  /// It could not be joined either, but has one more attempt.
  void repeat(size_t shadow) {
    if (const auto held = shadows_[shadow].holds) {
      insert(shadows_[shadow], *held, true);
    }
  }
  /// What links that are back mean for a shadow.
  enum class Turn : uint8_t {
    none,     ///< nothing for now
    at_once,  ///< a pair with one of them is to be tried, or is being tried
    instead,  ///< of the one that is being tried, which is to be given up
  };
  /// NICs (RailPair::local_nic, remote_nic) have their links back.  Of the pairs with such an end
  /// the one that worked last, or else the best, comes next, before those whose turn it is.  What
  /// is being tried (`under_way`) is given up for it, unless its own link came back just before
  /// (`promising`) and it is the better one or worked last.  Both not more often than each
  /// turn_interval, and the turns of the others go on where they were, so that an end that comes
  /// and goes keeps nobody from them.  A shadow that merely tries an end of that pair loses it.
  template <class IsBack>
  Turn turn_to(size_t shadow, End end, IsBack is_back, Instant now, bool under_way,
               bool promising = false) {
    Shadow& mine = shadows_[shadow];
    std::optional<size_t> wanted;
    for (size_t at = 0; at < pairs_.size(); ++at) {
      const RailPair& pair = pairs_[at];
      if (is_back(nic_of(pair, end)) && free_at(pair) <= now && may_take(shadow, pair, now) &&
          (!wanted || mine.proven == at)) {
        wanted = at;
      }
    }
    if (!wanted) {
      return Turn::none;
    }
    const std::optional<size_t> tried = under_way ? mine.holds : std::nullopt;
    if (tried == wanted) {
      mine.keeps_until = now + turn_interval;
      return Turn::at_once;
    }
    const bool stays =
        promising && tried && wanted != mine.proven && (*tried < *wanted || tried == mine.proven);
    if (stays || now < mine.may_turn_at) {
      const bool waits = mine.urged && (mine.inserted == mine.proven ||
                                        (mine.inserted < wanted && wanted != mine.proven));
      if (!waits) {  // else a better one would lose its turn, as links come back one after the
                     // other
        insert(mine, *wanted, mine.urged);
      }
      return under_way ? Turn::none : Turn::at_once;
    }
    if (tried && mine.in_turn && now - mine.chosen_at > most_of_an_attempt) {
      turn_past(mine, *tried);  // it has had its turn
    }
    mine.may_turn_at = mine.keeps_until = now + turn_interval;
    insert(mine, *wanted, true);
    mine.holds = wanted;
    take_from_others(shadow, pairs_[*wanted]);
    return under_way ? Turn::instead : Turn::at_once;
  }
  /// What the shadow tries is another one's now.  Once.
  bool lost(size_t shadow) { return std::exchange(shadows_[shadow].lost, false); }
  /// The better ones may be back, and are taken from whoever merely tries their ends.
  void begin_anew(size_t shadow) {
    begin_sweeps(shadow);
    drop_inserted(shadows_[shadow]);
    shadows_[shadow].looks = true;
  }
  /// The NIC at that end does not take the connection's memory.  True: for the first time.
  bool reject(End end, size_t nic, Instant now) {
    auto& nics = rejected_[static_cast<size_t>(end)];
    nics.resize(std::max(nics.size(), nic + 1));
    Rejection& one = nics[nic];
    one.free_at = now + forget_after * (1 << std::min(one.times, doublings_max));
    invariants_.hold(one.free_at > now && one.free_at <= now + forget_after * (1 << doublings_max),
                     "a rejected end is left alone for a bounded time");
    return one.times++ == 0;
  }
  /// Another device is at that end now, of which nothing is known.
  void forgive(End end, size_t nic) {
    auto& nics = rejected_[static_cast<size_t>(end)];
    if (nic < nics.size()) {
      nics[nic] = {};
    }
  }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  struct Rejection {
    unsigned times = 0;
    Instant free_at = Instant::min();
  };
  static size_t nic_of(const RailPair& pair, End end) {
    return end == End::local ? pair.local_nic : pair.remote_nic;
  }
  Instant free_at(const RailPair& pair, End end) const {
    const auto& nics = rejected_[static_cast<size_t>(end)];
    const size_t nic = nic_of(pair, end);
    return nic < nics.size() ? nics[nic].free_at : Instant::min();
  }
  Instant free_at(const RailPair& pair) const {
    return std::max(free_at(pair, End::local), free_at(pair, End::remote));
  }

  struct Shadow {
    size_t next = 0;                 ///< whose turn it is
    std::optional<size_t> inserted;  ///< to be tried before that
    bool urged = false;              ///< also right after another one that was inserted
    bool in_turn = true;             ///< what is held was not inserted
    std::optional<size_t> proven;    ///< the last one that was joined
    std::optional<size_t> holds;     ///< chosen: not for others
    unsigned sweeps = 0;             ///< that have ended
    bool swept = false;              ///< all have had their turn in this one
    bool proven_had_all = false;     ///< a full attempt in this one
    bool looks = false;              ///< for a better one than it had, in this one
    Duration limit = longest_attempt;
    Instant chosen_at = Instant::min();
    bool joined = false;  ///< it works, for all that is known
    bool lost = false;    ///< another shadow has it
    Instant may_turn_at = Instant::min();
    Instant keeps_until = Instant::min();  ///< its link came back just before
  };
  static void insert(Shadow& shadow, size_t pair, bool urged) {
    shadow.inserted = pair;
    shadow.urged = urged;
  }
  static void drop_inserted(Shadow& shadow) {
    shadow.inserted.reset();
    shadow.urged = false;
  }
  bool holds_nic_of(const Shadow& one, const RailPair& pair) const {
    return one.holds && (nic_of(pairs_[*one.holds], End::local) == nic_of(pair, End::local) ||
                         nic_of(pairs_[*one.holds], End::remote) == nic_of(pair, End::remote));
  }
  /// One of the first `count` shadows, which is not this one, holds a NIC of it.
  bool holds_another(size_t shadow, const RailPair& pair, size_t count) const {
    for (size_t i = 0; i < count; ++i) {
      if (i != shadow && holds_nic_of(shadows_[i], pair)) {
        return true;
      }
    }
    return false;
  }
  bool available(size_t shadow, size_t at, Instant now) const {
    const Shadow& mine = shadows_[shadow];
    const size_t respected = mine.looks ? 0 : mine.sweeps != 0 ? shadow : shadows_.size();
    return free_at(pairs_[at]) <= now && may_take(shadow, pairs_[at], now) &&
           !holds_another(shadow, pairs_[at], respected);
  }
  /// Who merely tries a NIC of the pair loses it.
  void take_from_others(size_t shadow, const RailPair& pair) {
    for (size_t i = 0; i < shadows_.size(); ++i) {
      if (i != shadow && !shadows_[i].joined && holds_nic_of(shadows_[i], pair)) {
        shadows_[i].holds.reset();
        shadows_[i].lost = true;
      }
    }
  }
  /// No other shadow works over a NIC of the pair, or is about to.
  bool may_take(size_t shadow, const RailPair& pair, Instant now) const {
    for (size_t i = 0; i < shadows_.size(); ++i) {
      const Shadow& other = shadows_[i];
      if (i != shadow && holds_nic_of(other, pair) && (other.joined || now < other.keeps_until)) {
        return false;
      }
    }
    return true;
  }
  size_t following(size_t at) const { return (at + 1) % pairs_.size(); }
  void turn_past(Shadow& shadow, size_t at) const {
    shadow.next = following(at);
    shadow.swept = shadow.swept || shadow.next == 0;
  }
  void begin_attempt(Shadow& mine) const {
    const bool proven = mine.holds == mine.proven;
    const bool last = proven && !mine.in_turn && mine.swept;
    mine.limit = last ? longest_attempt : Sweep::limit(pairs_.size(), mine.sweeps, longest_attempt);
    mine.proven_had_all = mine.proven_had_all || (proven && mine.limit == longest_attempt);
  }

  std::vector<RailPair> pairs_;
  std::vector<Shadow> shadows_;
  std::array<std::vector<Rejection>, 2> rejected_;
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
