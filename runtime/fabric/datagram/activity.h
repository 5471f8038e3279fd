// Whether more than heartbeats comes and goes at a port.
#pragma once

#include <cstdint>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"

namespace nccl_ha::fabric {

class Activity {
 public:
  /// After something came or went, more may follow for so long.
  static constexpr Duration span = std::chrono::milliseconds(1);

  void mark(Instant now) { until_ = now + span; }
  void on_sent(uint64_t bytes) { payload_in_flight_ += bytes; }
  /// Payload is acknowledged, is to be sent again, or is given up.
  void on_returned(uint64_t bytes, Instant now) {
    NHA_DASSERT(bytes <= payload_in_flight_, "more payload comes back than was sent");
    payload_in_flight_ -= bytes;
    if (bytes != 0) {
      mark(now);
    }
  }
  bool active(Instant now) const { return now < until_ || payload_in_flight_ != 0; }
  /// Of all paths of the port.
  uint64_t payload_in_flight() const { return payload_in_flight_; }

 private:
  Instant until_{};
  uint64_t payload_in_flight_ = 0;
};

}  // namespace nccl_ha::fabric
