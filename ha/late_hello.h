// Whether a connector whose stream ends before it was welcomed dials again.
#pragma once

#include <chrono>
#include <cstdint>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"

namespace nccl_ha::ha {

/// A process that stands still between its connection and its hello (a host that starts a job, a
/// debugger) may meet a listener that took it for somebody else meanwhile.  That is its own fault
/// and says nothing of the peer.  Takes the time from its caller.  One thread.
class LateHello {
 public:
  /// A listener may have given up after that (HA_NCCL_HANDSHAKE_TIMEOUT_MS is longer).
  static constexpr Duration late_after = std::chrono::seconds(1);
  static constexpr uint32_t redials_max = 3;

  void on_dial(Instant now) { dialled_at_ = now; }
  void on_hello(Instant now) {
    NHA_DASSERT(now >= dialled_at_, "a hello goes out after its connection was dialled");
    took_ = now - dialled_at_;
  }
  /// The stream ended before the welcome.  True: the caller dials again.
  [[nodiscard]] bool dial_again() { return took_ >= late_after && redials_++ < redials_max; }
  /// From the connection to the hello.
  Duration took() const { return took_; }

 private:
  Instant dialled_at_{};
  Duration took_{};
  uint32_t redials_ = 0;
};

}  // namespace nccl_ha::ha
