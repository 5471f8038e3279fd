// Which authenticated datagrams are new: each counts once, and none that is too old to be told from
// one that counted before.
#pragma once

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <map>

#include "runtime/base/instant.h"

namespace nccl_ha::ha {

/// Senders number their datagrams, stamp them with the time of day, and draw a new number for
/// themselves when they start.  A window of numbers per sender (RFC 4303, 3.4.3) tells
/// repetitions; stamps bound how long a sender must be remembered.  What is asked here was
/// authenticated before: anybody else could fill the table.  Owner thread only.
class ReplayWindow {
 public:
  static constexpr uint64_t numbers = 1024;
  struct Limits {
    Duration age_max = std::chrono::seconds(5);  ///< stamps may differ from this clock by so much
    size_t senders = 64;
  };
  enum class Verdict : uint8_t {
    fresh,
    repeated,
    too_old,           ///< by its stamp, by its number, or from before this process began
    from_the_future,   ///< the clocks of both hosts differ
    too_many_senders,  ///< none of those that are known has been silent for long enough
  };

  /// Times of day in nanoseconds; nothing that was stamped before `begin` counts, as nobody knows
  /// any more what came then.
  ReplayWindow(const Limits& limits, int64_t begin) : limits_(limits), begin_(begin) {}

  /// Says `fresh` once for each.
  Verdict take(uint64_t sender, uint64_t number, int64_t stamp, int64_t now) {
    const int64_t age_max = limits_.age_max.count();
    if (stamp < begin_ || stamp < now - age_max) {
      return Verdict::too_old;
    }
    if (stamp > now + age_max) {
      return Verdict::from_the_future;
    }
    const auto known = senders_.find(sender);
    if (known == senders_.end()) {
      // Whose last datagram is too old to count again may be forgotten.
      std::erase_if(senders_, [&](const auto& entry) {
        return senders_.size() >= limits_.senders && entry.second.newest_stamp < now - age_max;
      });
      if (senders_.size() >= limits_.senders) {
        return Verdict::too_many_senders;
      }
      Sender& made = senders_[sender];
      made.newest = number;
      made.newest_stamp = stamp;
      made.seen.set(0);
      return Verdict::fresh;
    }
    Sender& from = known->second;
    if (number > from.newest) {
      const uint64_t by = number - from.newest;
      from.seen = by >= numbers ? std::bitset<numbers>() : from.seen << by;
      from.seen.set(0);
      from.newest = number;
    } else {
      const uint64_t back = from.newest - number;
      if (back >= numbers) {
        return Verdict::too_old;
      }
      if (from.seen.test(back)) {
        return Verdict::repeated;
      }
      from.seen.set(back);
    }
    from.newest_stamp = std::max(from.newest_stamp, stamp);
    return Verdict::fresh;
  }
  size_t senders() const { return senders_.size(); }

 private:
  struct Sender {
    uint64_t newest = 0;
    int64_t newest_stamp = 0;
    std::bitset<numbers> seen;  ///< of the newest and those before it
  };

  const Limits limits_;
  const int64_t begin_;
  std::map<uint64_t, Sender> senders_;
};

}  // namespace nccl_ha::ha
