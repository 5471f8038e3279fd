// What the receiver has announced to a sender: the rings that its NICs write.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "actors/connection/shadow_keys.h"
#include "actors/control.h"
#include "actors/cts_entry.h"
#include "actors/immediate.h"
#include "actors/send_channel.h"
#include "runtime/fabric/path.h"

namespace nccl_ha {

/// Judges announcements, whether a completion tells of them or they are found in memory, and
/// publishes their groups in the channel, each once.  A lane has a ring of its own: a device that
/// nobody can stop may write into it for as long as it likes.  One thread.
class ClearToSends {
 public:
  enum class Verdict : uint8_t {
    good,
    malformed,  ///< the peer did not mean this
  };
  /// What came with a good announcement.
  struct News {
    uint64_t first = 0;  ///< the first group that is new
    uint64_t groups = 0;
  };

  ClearToSends(SendChannel& channel) : channel_(channel) {}

  /// The memory that the peer writes on a lane.
  const std::shared_ptr<CtsRing>& ring(size_t lane) {
    if (!rings_[lane]) {
      rings_[lane] = std::make_shared<CtsRing>();
    }
    return rings_[lane];
  }
  const ShadowKeyTable& keys() const { return keys_; }
  /// From now on the keys that entries carry for a fallback path's device are noted.
  /// Theirs begin at `first_slot`.
  void note_keys(size_t first_slot) {
    notes_keys_ = true;
    keys_.begin(first_slot);
  }

  /// The one before may be written as late as it likes.
  const std::shared_ptr<CtsRing>& renew(size_t lane) {
    rings_[lane].reset();
    return ring(lane);
  }

  /// A write with immediate of kind clear_to_send came over the lane's path of that epoch.
  [[gnu::always_inline]] Verdict take(const fabric::Completion& completion, size_t lane,
                                      uint32_t epoch, News& news) {
    if (lane == lane_ && tells_of_found(completion, epoch)) {
      note(told_groups_, std::span(*rings_[lane]).subspan(told_entry_, 1));
      ++told_groups_;
      told_entry_ = (told_entry_ + 1) % cts_entries;
      return Verdict::good;
    }
    return take_announced(completion, lane, epoch, news);
  }
  /// Looks for the next group in memory, where the entry is there before the completion that tells
  /// of it.  False: there is none.
  bool find(News& news);

 private:
  Verdict take_announced(const fabric::Completion& completion, size_t lane, uint32_t epoch,
                         News& news);
  /// A completion that tells of nothing but one message's place that was found in memory before.
  bool tells_of_found(const fabric::Completion& completion, uint32_t epoch) const {
    const Announcement found{static_cast<uint32_t>(told_groups_),
                             static_cast<uint32_t>(told_entry_), epoch};
    return told_groups_ != channel_.published_groups() && completion.bytes == sizeof(CtsEntry) &&
           completion.has_immediate && completion.immediate == found.pack();
  }
  void note(uint64_t number, std::span<const CtsEntry> entries) {
    if (notes_keys_) [[unlikely]] {
      keys_.note(number, entries);
    }
  }

  SendChannel& channel_;
  std::array<std::shared_ptr<CtsRing>, lanes_max> rings_;  ///< of lanes that have, or had, a path
  size_t lane_ = 0;                                        ///< over which the latest group came
  size_t next_entry_ = 0;     ///< of its ring, where the next group is expected
  uint64_t told_groups_ = 0;  ///< that completions have told of
  size_t told_entry_ = 0;     ///< where the next one of them began, if it was found
  bool notes_keys_ = false;
  ShadowKeyTable keys_;
};

}  // namespace nccl_ha
