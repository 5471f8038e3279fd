// Ports that somebody has for a moment longer: a node that was killed and has not ended yet, or
// `nccl-ha info --routes`, which finds out for itself where no node runs.
#pragma once

#include <poll.h>

#include <cerrno>
#include <chrono>

#include "runtime/base/clock.h"

namespace nccl_ha::tools {

class PortWait {
 public:
  /// For all ports together.
  PortWait(Clock& clock, Duration limit) : clock_(clock), end_(clock.now() + limit) {}

  /// What `attempt()` returns, a Result, once the port is free; its last error where the time is
  /// up, or `stays()` says that whoever has the port goes on using it.
  template <class Attempt, class Stays>
  auto open(Attempt&& attempt, Stays&& stays) {
    auto opened = attempt();
    while (!opened && opened.error().sys == EADDRINUSE && clock_.now() < end_ && !stays()) {
      poll(nullptr, 0, apart_ms);  // the kernel tells nobody that it is free
      opened = attempt();
    }
    return opened;
  }

 private:
  static constexpr int apart_ms = 20;

  Clock& clock_;
  Instant end_;
};

}  // namespace nccl_ha::tools
