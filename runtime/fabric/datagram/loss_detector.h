// Which segments are lost, by the order of transmissions: what was sent later has arrived.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "runtime/fabric/packet_io.h"

namespace nccl_ha::fabric {

class LossDetector {
 public:
  /// A later transmission on the same channel that arrived and is this many younger means that a
  /// segment is lost, not late; so do this many duplicate acknowledgements (RFC 6675's DupThresh).
  static constexpr uint64_t reorder_threshold = 3;
  /// On networks that reorder more, up to this many: each segment that was late after all adds one,
  /// until a timeout.
  static constexpr uint64_t reorder_max = 64;

  /// The number of a transmission that leaves now.
  uint64_t on_sent(Channel channel) { return ++sent_[static_cast<size_t>(channel)]; }
  void on_arrived(Channel channel, uint64_t order) {
    uint64_t& newest = arrived_[static_cast<size_t>(channel)];
    newest = std::max(newest, order);
  }
  bool lost(Channel channel, uint64_t order) const {
    return order + reordered_ <= arrived_[static_cast<size_t>(channel)];
  }
  /// Nothing came for a whole timeout: waiting for so many later ones has found no loss.
  void on_timeout() { reordered_ = reorder_threshold; }
  /// What had counted as lost was late.
  void on_late() { reordered_ = std::min(reordered_ + 1, reorder_max); }

  /// The oldest segment is acknowledged.
  void on_progress() { duplicates_ = 0; }
  /// An acknowledgement that says nothing new; true: the oldest segment is lost.  Once until then.
  bool on_duplicate() { return ++duplicates_ == reordered_; }

 private:
  std::array<uint64_t, channel_count> sent_{};
  std::array<uint64_t, channel_count> arrived_{};  ///< the newest known to have
  uint64_t reordered_ = reorder_threshold;
  uint32_t duplicates_ = 0;
};

}  // namespace nccl_ha::fabric
