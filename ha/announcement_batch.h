// When receives that were posted are announced to the peer, and how many with one write.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace nccl_ha::ha {

/// A clear-to-send costs both sides and the network as much as any small message.  While the sender
/// has places for several more messages, or for half of all there are, it needs no other, and those
/// that come together go in one write.  One thread.
class AnnouncementBatch {
 public:
  /// What has been staged and not been announced: the last groups and entries there are.
  struct Held {
    uint32_t groups = 0;
    uint32_t entries = 0;
  };

  // Announced and not yet arrived: below the first number a new receive announces what is held
  // back, below the second an arrival does.
  static constexpr uint64_t announced_ahead = 4;
  static constexpr uint64_t announced_least = 2;

  /// `entries_max`: of one write; `group_entries_max`: of one group.
  AnnouncementBatch(uint32_t entries_max, uint32_t group_entries_max)
      : full_above_(entries_max - group_entries_max) {}

  void stage(uint32_t entries) {
    ++held_.groups;
    held_.entries += entries;
  }
  /// Another group may not go into the same write.
  bool full() const { return held_.entries > full_above_; }
  /// With so many groups posted and not arrived, the held ones among them.
  bool due_after_post(uint64_t open) const { return due(open, announced_ahead); }
  /// The same after an arrival, for a caller who posts no more.
  bool due_after_arrival(uint64_t open) const { return due(open, announced_least); }
  bool empty() const { return held_.groups == 0; }
  const Held& held() const { return held_; }
  /// What is held is announced now.
  Held take() { return std::exchange(held_, {}); }
  /// Everything that is open is announced anew, with what is held.
  void forget() { held_ = {0, 0}; }

 private:
  bool due(uint64_t open, uint64_t least) const {
    return held_.groups != 0 && open - held_.groups < std::max(least, open / 2);
  }

  uint32_t full_above_;
  Held held_;
};

}  // namespace nccl_ha::ha
