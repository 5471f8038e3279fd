// What a receiver still expects when the sender's last words overtake its data.
#pragma once

#include <chrono>
#include <cstdint>

#include "runtime/base/clock.h"

namespace nccl_ha::ha {

/// A sender closes when all that it sent is acknowledged.  A NIC acknowledges by itself, so the
/// receiver may read "closed" on one way while completions of the last messages are still on
/// another.  They come soon or never.  Takes the time from its caller.  One thread.
class CloseTail {
 public:
  /// Within what the sender's own end takes (CloseLinger), and long for a completion.
  static constexpr Duration limit = std::chrono::milliseconds(400);
  static constexpr Duration interval = std::chrono::milliseconds(1);  ///< from look to look

  /// The sender has closed and says that it completed every group below `completed`.
  void begin(uint64_t completed, Instant now) {
    expected_ = completed;
    until_ = now + limit;
    under_way_ = true;
  }
  bool under_way() const { return under_way_; }
  /// `received`: every group below was received whole.
  bool is_over(uint64_t received, Instant now) const {
    return received >= expected_ || now >= until_;
  }
  void end() { under_way_ = false; }

 private:
  uint64_t expected_ = 0;
  Instant until_{};
  bool under_way_ = false;
};

}  // namespace nccl_ha::ha
