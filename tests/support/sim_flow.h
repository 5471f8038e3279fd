// Steady traffic between a simulated pair of hosts.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>

#include "tests/rig/runs/pair.h"
#include "tests/rig/runs/traffic.h"

namespace nccl_ha::test {

/// Moves messages of up to a megabyte, or so many bytes, for so long; bytes per second that were
/// received.  `ahead`: so many receives are open at most; 0: as many as there is room for.
class Flow {
 public:
  Flow(rig::SimPair& pair, uint64_t seed, uint32_t bytes_max = 1 << 20, uint64_t ahead = 0)
      : pair_(pair) {
    rig::TransferPlan plan;
    plan.seed = seed;
    plan.groups = 100000;
    plan.grouped = 0;
    plan.large = 1;
    plan.bytes_max = bytes_max;
    plan.late_write_window = 16;
    if (ahead != 0) {
      const auto& counters = pair.receive_channel().counters();
      plan.released = [&counters, ahead] { return counters.receives_done.get() + ahead; };
    }
    traffic_ = std::make_unique<rig::Traffic>(pair.link(), plan);
  }
  /// False: that did not come in time.
  bool run_until(const std::function<bool()>& done, Duration limit) {
    return pair_.world().run_until([&] { return traffic_->step() || done(); }, limit) &&
           !traffic_->is_wrong();
  }
  double rate(Duration time) {
    const uint64_t before = done();
    const Instant begin = pair_.world().now();
    pair_.world().run_until([&] { return traffic_->step(); }, time);
    EXPECT_FALSE(traffic_->is_wrong()) << traffic_->outcome();
    return static_cast<double>(done() - before) /
           std::chrono::duration<double>(pair_.world().now() - begin).count();
  }

 private:
  uint64_t done() { return pair_.receive_channel().counters().bytes_received.get(); }
  rig::SimPair& pair_;
  std::unique_ptr<rig::Traffic> traffic_;
};

}  // namespace nccl_ha::test
