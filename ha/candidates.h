// Which pair of ends a connection's fallback path takes, and which it leaves alone for a while.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "ha/mutation.h"
#include "ha/shadow.h"
#include "runtime/clock.h"

namespace nccl_ha::ha {

/// The ranked pairs (rank_shadows), taken in turn.  A pair that cannot be joined makes room for the
/// next one; an end whose device does not take the connection's memory is rejected with all its
/// pairs, until that is forgotten.  Takes the time from its caller.  One thread.
class ShadowCandidates {
 public:
  /// A rejected end is tried again after so long, and after twice as long with each further time.
  static constexpr Duration forget_after = std::chrono::seconds(30);
  static constexpr unsigned doublings_max = 6;

  enum class End : uint8_t { local, remote };

  ShadowCandidates() = default;
  explicit ShadowCandidates(std::vector<RailPair> ranked) : pairs_(std::move(ranked)) {}

  bool empty() const { return pairs_.empty(); }
  /// The next pair to try: the one at hand unless it is to be left alone.  Nothing: all are
  /// rejected, until next_at().
  std::optional<RailPair> choose(Instant now) {
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const size_t at = (current_ + i) % pairs_.size();
      if (free_at(pairs_[at]) <= now) {
        current_ = at;
        return pairs_[at];
      }
    }
    return std::nullopt;
  }
  /// When the first of the pairs may be tried again.
  Instant next_at() const {
    Instant first = Instant::max();
    for (const RailPair& pair : pairs_) {
      first = std::min(first, free_at(pair));
    }
    return first;
  }
  /// The pair at hand could not be joined.
  void pass_over() { current_ = pairs_.empty() ? 0 : (current_ + 1) % pairs_.size(); }
  /// The better ones may be back.
  void begin_anew() { current_ = 0; }
  /// The device at that end does not take the connection's memory.  True: for the first time.
  bool reject(End end, size_t rail, Instant now) {
    auto& ends = rejected_[static_cast<size_t>(end)];
    ends.resize(std::max(ends.size(), rail + 1));
    Rejection& one = ends[rail];
    if (mutated(Mutation::rejection_unheeded)) {
      return one.times++ == 0;
    }
    one.free_at = mutated(Mutation::rejection_for_ever)
                      ? Instant::max()
                      : now + forget_after * (1 << std::min(one.times, doublings_max));
    return one.times++ == 0;
  }

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

  std::vector<RailPair> pairs_;
  size_t current_ = 0;
  std::array<std::vector<Rejection>, 2> rejected_;
};

}  // namespace nccl_ha::ha
