// What tests of simulated pairs of hosts share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "runtime/base/config.h"
#include "runtime/base/log.h"
#include "tests/rig/runs/pair.h"

namespace nccl_ha::test {

/// Lets virtual time pass.
inline void pass(rig::SimPair& pair, Duration time) {
  static_cast<void>(pair.world().run_until([] { return false; }, time));
}

/// That live in a process.
inline size_t actors(sim::Process& process) {
  size_t count = 0;
  for (size_t i = 0; i < process.engine->worker_count(); ++i) {
    count += process.engine->worker(i).actor_count();
  }
  return count;
}

/// Within this a side ends whose peer's host has gone, or to which nothing leads any more: it asks,
/// gives the path up though nothing tells whether the peer runs, and nobody answers for as long as
/// the budget lasts.
inline Duration end_bound(const Config& config) {
  constexpr auto slack = std::chrono::milliseconds(300);
  return std::chrono::milliseconds(config.heartbeat_ms + 3 * config.rto_ms +
                                   config.retry_budget_ms) +
         slack;
}

/// While it is there only errors are logged: many runs warn of what is done to them.
struct ErrorsOnly {
  ErrorsOnly() { set_log_level(LogLevel::error); }
  ~ErrorsOnly() { set_log_level(LogLevel::warn); }
  ErrorsOnly(const ErrorsOnly&) = delete;
  ErrorsOnly& operator=(const ErrorsOnly&) = delete;
};

/// The connection carries what it is given.
inline void expect_transfers(rig::SimPair& pair) {
  rig::TransferPlan plan;
  plan.groups = 10;
  EXPECT_EQ(pair.transfer(plan, std::chrono::seconds(30)), "");
}

}  // namespace nccl_ha::test
