// What a datagram port is given.  All of it outlives the port.
#pragma once

#include "runtime/base/clock.h"
#include "runtime/base/secret.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/memory.h"
#include "runtime/telemetry/counter_file.h"
#include "runtime/telemetry/recorder.h"

namespace nccl_ha::fabric {

struct PortServices {
  Memory* memory = nullptr;
  Clock* clock = nullptr;
  TimerWheel* timers = nullptr;
  SecretSource* secrets = nullptr;
  Recorder* recorder = nullptr;    ///< may be null
  const LostTime* lost = nullptr;  ///< time in which nobody could look; may be null
  CounterPlace counters = {};
};

}  // namespace nccl_ha::fabric
