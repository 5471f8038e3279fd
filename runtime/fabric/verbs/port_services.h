// What a port is given.
#pragma once

#include "runtime/base/clock.h"
#include "runtime/base/secret.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/telemetry/counter_file.h"

namespace nccl_ha::fabric::verbs {

/// All of it outlives the port.
struct PortServices {
  Clock* clock = nullptr;  ///< the turn's
  TimerWheel* timers = nullptr;
  SecretSource* secrets = nullptr;
  const LostTime* lost = nullptr;  ///< time in which nobody could look; may be null
  CounterPlace counters = {};

  Duration lost_time() const { return lost == nullptr ? Duration(0) : lost->total(); }
  Moment moment() const { return {clock->now(), lost_time()}; }
};

}  // namespace nccl_ha::fabric::verbs
