// Which rails of a device deliver far less than they should: slow, not dead.  Pure.
//
// A rail is compared with the others of its connection at the same time, each by what its device
// promises, so that rails of unequal speed are no stragglers, and congestion of all of them is
// none.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ha/invariant.h"
#include "ha/rails.h"
#include "runtime/base/instant.h"

namespace nccl_ha::ha {

/// Takes the time from its caller.  One thread.
class Stragglers {
 public:
  struct Options {
    double factor = 4;  ///< so many times slower than the best rail is slow; 0: nothing is
    Duration time = std::chrono::seconds(1);   ///< for so long without a break
    bool fence = false;                        ///< a slow rail carries nothing
    Duration after = std::chrono::seconds(5);  ///< until it has worked for so long
  };
  /// What its owner sees of a rail.
  struct Seen {
    bool serves = false;      ///< some lane of it works and may carry data
    double ns_per_byte = 0;   ///< as measured; 0: it was not
    uint64_t promised = 0;    ///< bytes per second that its device has; 0: not known
    uint32_t rates_seen = 0;  ///< measurements so far
  };
  enum class Change : uint8_t { none, slow, well };
  /// One bad measurement says nothing.
  static constexpr uint32_t measurements = 3;
  /// Times that the wait is doubled at most.
  static constexpr unsigned doublings_max = 6;

  Stragglers() = default;
  explicit Stragglers(const Options& options) : options_(options) {}

  /// Looks at one of them; to be asked for each, every now and then.
  Change look(size_t rail, std::span<const Seen> all, Instant now) {
    if (!invariants_.hold(rail < all.size() && all.size() <= rails_.size(), "rails are few") ||
        options_.factor <= 0) {
      return Change::none;
    }
    Rail& mine = rails_[rail];
    const double behind = behind_best(rail, all);
    // Between both bounds it stays what it is.
    const bool other =
        mine.slow ? behind != 0 && behind <= options_.factor / 2 : behind > options_.factor;
    if (!other) {
      mine.changing = false;
      return Change::none;
    }
    if (!mine.changing) {
      mine.changing = true;
      mine.since = now;
      mine.rates_before = all[rail].rates_seen;
      return Change::none;
    }
    if (now - mine.since < options_.time ||
        all[rail].rates_seen - mine.rates_before < measurements) {
      return Change::none;
    }
    mine.changing = false;
    mine.slow = !mine.slow;
    if (mine.slow && options_.fence) {
      fence(mine, now);
    }
    return mine.slow ? Change::slow : Change::well;
  }

  bool slow(size_t rail) const { return rails_[rail].slow; }
  bool fenced(size_t rail) const { return rails_[rail].fenced; }
  /// How often slower than the best one that serves, by what both promise; 0: not known.
  static double behind_best(size_t rail, std::span<const Seen> all) {
    const bool promised =
        std::all_of(all.begin(), all.end(), [](const Seen& one) { return one.promised != 0; });
    const auto cost = [&](const Seen& one) {
      return promised ? one.ns_per_byte * static_cast<double>(one.promised) : one.ns_per_byte;
    };
    double best = 0;
    for (const Seen& one : all) {
      if (one.serves && one.ns_per_byte > 0 && (best == 0 || cost(one) < best)) {
        best = cost(one);
      }
    }
    const Seen& mine = all[rail];
    return best == 0 || !mine.serves || mine.ns_per_byte <= 0 ? 0 : cost(mine) / best;
  }

  /// When a rail that is fenced may carry data again; all its lanes have worked since `since`.
  Instant due(size_t rail, Instant since) const {
    return std::max(since, rails_[rail].fenced_at) + after(rails_[rail]);
  }
  /// It carries data again, and nothing is known of it.
  void release(size_t rail, Instant now) {
    Rail& mine = rails_[rail];
    invariants_.hold(mine.fenced, "a rail is released that was fenced");
    mine.fenced = false;
    mine.slow = false;
    mine.changing = false;
    mine.released_at = now;
    mine.was_released = true;
  }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  struct Rail {
    bool slow = false;
    bool fenced = false;
    bool changing = false;  ///< it has looked otherwise since `since`
    bool was_released = false;
    Instant since{};
    uint32_t rates_before = 0;
    Instant fenced_at{};
    Instant released_at{};
    unsigned doublings = 0;
  };
  Duration after(const Rail& rail) const { return options_.after * (1 << rail.doublings); }

  void fence(Rail& rail, Instant now) {
    const bool again = rail.was_released && now - rail.released_at < after(rail) + options_.time;
    rail.doublings = again ? std::min(rail.doublings + 1, doublings_max) : 0;
    rail.fenced = true;
    rail.fenced_at = now;
  }

  Options options_{.factor = 0};
  std::array<Rail, device_rails_max> rails_{};
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
