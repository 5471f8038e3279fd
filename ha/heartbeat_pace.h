// When a connection gives heartbeats, so that many idle ones cost no more than some.  Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/base/instant.h"

namespace nccl_ha::ha {

/// Connections speak at multiples of the interval of their clock, so that their worker wakes once
/// for all of them.  Of more than `crowd_free` that are on one worker, each idle one leaves moments
/// out, up to all but every `stride_max`th, and they take turns: some speak at each moment, and
/// what one of them finds silent the others are told at once (Liveness::on_suspicion).
struct HeartbeatPace {
  static constexpr size_t crowd_free = 32;
  static constexpr uint64_t stride_max = 10;

  Duration interval{};  ///< more than 0
  size_t crowd = 1;     ///< connections of the worker
  uint32_t place = 0;   ///< among these
  bool idle = true;

  uint64_t stride() const {
    return idle ? std::clamp<uint64_t>(crowd / crowd_free, 1, stride_max) : 1;
  }
  /// Which moment of the clock is the last one before or at `now`.
  uint64_t moment(Instant now) const {
    return static_cast<uint64_t>(now.time_since_epoch() / interval);
  }
  /// It is this connection's turn.
  bool due(uint64_t moment) const { return (moment + place) % stride() == 0; }
  /// It was so at a moment after `last`, up to `moment`: a late turn leaves no heartbeat out.
  bool due_since(uint64_t last, uint64_t moment) const {
    return (moment + place) / stride() != (last + place) / stride();
  }
  /// The first moment after `now` that is due.
  Instant next(Instant now) const {
    uint64_t at = moment(now) + 1;
    at += (stride() - (at + place) % stride()) % stride();
    return Instant(interval * static_cast<int64_t>(at));
  }
};

}  // namespace nccl_ha::ha
