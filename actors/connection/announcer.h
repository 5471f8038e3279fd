// Tells the sender where its messages may be written: clear-to-sends.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "actors/connection/limits.h"
#include "actors/connection/open_receives.h"
#include "actors/connection/side.h"
#include "actors/cts_entry.h"
#include "actors/request.h"
#include "ha/announcement_batch.h"

namespace nccl_ha {

/// Writes entries into a ring of its own and from there into the sender's, of which each lane has
/// one: what is late lands in that of its own lane.  Several go with one write
/// (ha/announcement_batch.h).  One thread.
class Announcer {
 public:
  Announcer(const ConnectionParts& parts, const OpenReceives& groups);

  /// The memory that is written into the peer's.
  const std::shared_ptr<CtsRing>& ring() { return ring_; }
  /// What both sides do with the device's other rails: before the first group.
  void begin_rails();

  /// Before a group of so many buffers is added to the open ones: their entries lie side by side.
  /// False: the connection has failed.
  [[nodiscard]] bool make_room(uint32_t buffers) {
    if (on_other_rails_ && groups_.all_complete() && known_ == groups_.posted()) {
      choose_lane();
    }
    return staged_ + buffers <= cts_entries || wrap();
  }
  /// Makes the entries of the group that was added last, and announces it if it cannot be held
  /// back.
  void stage(const ReceiveRequest& request);
  /// After a receive was posted.
  void announce_if_due() {
    if (batch_.due_after_post(groups_.posted() - groups_.completed())) {
      announce();
    }
  }
  /// After a group has arrived, for a caller who posts no more.
  void announce_if_short() {
    if (batch_.due_after_arrival(groups_.posted() - groups_.completed())) {
      announce();
    }
  }

  // When a path fails.
  size_t lane() const { return lane_; }  ///< announcements keep their order by taking one lane
  /// What is open, if anything is, is to be announced again, and cannot be yet.
  bool renews() const { return anew_; }
  /// The sender lacks the announcement of something that is open.
  bool waits() const { return anew_ && !groups_.all_complete(); }
  /// The sender knows of every group below.
  void note_known(uint64_t groups) { known_ = std::max(known_, groups); }
  /// What is open has to be announced anew: that lane failed, or keys became known.
  void renew() { anew_ = true; }
  /// Does so over a lane that is usable, if that was asked for.  `peer_stopped`: the sender takes
  /// nothing more of the lane that failed, so that nothing old comes after what is new.
  void announce_again(bool peer_stopped);

  // Keys of fallback paths' devices.
  /// The sender needs those of the best one that works once its own NIC's paths are gone; telling
  /// them costs a registration of each region with the other device, so it waits until then.  What
  /// was told once goes on being told, as the sender may still use that path.
  void want_keys();
  /// The lane is being taken down: its next path has another epoch.
  void forget_keys(const Lane& lane) { named_ &= ~bit_of(lane); }
  /// They are told for that lane, so that something may have come over it.
  bool names(const Lane& lane) const {
    return lane.on_other_rail() || (named_ & bit_of(lane)) != 0;
  }
  /// Of a buffer on the device of a lane elsewhere; 0: the device does not take it.
  uint32_t shadow_key(size_t lane, const ReceiveRequest::Buffer& buffer);

 private:
  void announce();
  bool wrap();
  void post(uint64_t number, uint64_t groups, uint32_t first, uint32_t entries);
  static unsigned bit_of(const Lane& lane) { return 1U << lane.shadow_number; }
  /// Where the next announcement goes while nothing is open, so that none before it is under way.
  void choose_lane();
  std::optional<size_t> usable_lane() const;
  void name_rail_keys(CtsEntry& entry, const ReceiveRequest::Buffer& buffer);
  void name_keys(CtsEntry& entry, const ReceiveRequest::Buffer& buffer);
  void name_all_keys();

  ConnectionState& state_;
  PathSet& paths_;
  Liveness& liveness_;
  Failover& failover_;
  const OpenReceives& groups_;
  std::shared_ptr<CtsRing> ring_;
  uint32_t staged_ = 0;                                         ///< where the next entry goes
  ha::AnnouncementBatch batch_{announced_together, group_max};  ///< of entries before that
  uint64_t known_ = 0;  ///< to the sender: every group below
  size_t lane_ = 0;
  bool anew_ = false;
  bool keys_wanted_ = false;
  unsigned named_ = 0;                             ///< shadows, a bit each
  bool names_rails_ = false;                       ///< their devices have keys of their own
  bool on_other_rails_ = false;                    ///< announcements take those if they work
  std::array<uint16_t, cts_slots> first_entry_{};  ///< of each group
};

}  // namespace nccl_ha
