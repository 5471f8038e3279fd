// A path that works and has become slow is left for a standby that is not.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/sim_flow.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double fast_rate = 20e6;
/// So little waits that a NIC's retries do not end on a slow path.
constexpr uint32_t bytes_max = 1 << 16;
constexpr uint64_t ahead = 6;

class SlowPath : public testing::TestWithParam<bool> {
 protected:
  /// Heartbeats wait behind data: silence has another cause than slowness (PathHealth).
  static Config patient() {
    Config config;
    config.heartbeat_ms = 2000;
    config.soft_timeout_ms = 4000;
    config.rto_ms = 8000;
    return config;
  }
  static SimPair make(uint64_t seed, const Config& config = patient()) {
    return SimPair(seed, {}, config, {.rails = 2, .rdma = GetParam()});
  }
  static void set(SimPair& pair, size_t rail, double rate) {
    sim::Link link;
    link.rate = static_cast<uint64_t>(rate);
    pair.set_links(link, link, rail);
  }
  /// Both rails are fast, the second one stands by, and traffic has shown what the first one does.
  static void begin(SimPair& pair) {
    set(pair, 0, fast_rate);
    set(pair, 1, fast_rate);
    ASSERT_TRUE(pair.connect()) << pair.error();
    pass(pair, seconds(1));
  }
  static const ConnectionCounters& counters(SimPair& pair) {
    return pair.send_channel().counters();
  }
};
INSTANTIATE_TEST_SUITE_P(Fabrics, SlowPath, testing::Bool(), [](const auto& one) {
  return std::string(one.param ? "rdma" : "datagrams");
});

TEST_P(SlowPath, TheStandbyTakesOverWhatAPrimaryWithATenthOrAHundredthOfItsRateHad) {
  for (const double times : {10.0, 100.0}) {
    SimPair pair = make(41);
    ASSERT_NO_FATAL_FAILURE(begin(pair));
    Flow flow(pair, 41, bytes_max, ahead);
    flow.rate(seconds(1));
    const double healthy = flow.rate(seconds(1));
    EXPECT_GT(healthy, 0.8 * fast_rate);
    set(pair, 0, fast_rate / times);
    // HA_NCCL_STRAGGLER_MS and its spread, and what one window of a hundredth takes; where a NIC's
    // own retries end, that is a failover.
    ASSERT_TRUE(flow.run_until([&] { return counters(pair).traffic_moves.get() == 1; }, seconds(4)))
        << times << " times slower";
    EXPECT_TRUE(counters(pair).detours.get() == 1 || (GetParam() && times > 10));
    flow.rate(milliseconds(500));
    EXPECT_GT(flow.rate(seconds(1)), 0.9 * healthy) << times << " times slower";
    flow.rate(seconds(3));
    EXPECT_EQ(counters(pair).traffic_moves.get(), 1U);
    EXPECT_EQ(counters(pair).detours_vain.get(), 0U);
  }
}

TEST_P(SlowPath, WhereBothAreSlowTrialsAreRare) {
  SimPair pair = make(42);
  ASSERT_NO_FATAL_FAILURE(begin(pair));
  Flow flow(pair, 42, bytes_max, ahead);
  flow.rate(seconds(2));
  set(pair, 0, fast_rate / 16);
  set(pair, 1, fast_rate / 16);
  constexpr auto minutes = seconds(150);
  flow.rate(minutes);
  const uint64_t trials = counters(pair).detours.get();
  EXPECT_GE(trials, 2U);
  EXPECT_LE(static_cast<double>(trials), 1 + std::log2(150.0 / 5));
  EXPECT_EQ(counters(pair).detours_vain.get(), trials);
  EXPECT_EQ(counters(pair).traffic_moves.get(), 2 * trials) << "there and back";
  EXPECT_GT(flow.rate(seconds(5)), 0.8 * fast_rate / 16);
}

TEST_P(SlowPath, APrimaryThatIsFastAgainIsGoneBackToWhereThatIsWanted) {
  for (const bool failback : {false, true}) {
    Config config = patient();
    config.enable_failback = failback;
    config.failback_ms = 1000;
    SimPair pair = make(43, config);
    ASSERT_NO_FATAL_FAILURE(begin(pair));
    Flow flow(pair, 43, bytes_max, ahead);
    flow.rate(seconds(2));
    set(pair, 0, fast_rate / 16);
    ASSERT_TRUE(flow.run_until([&] { return counters(pair).detours.get() == 1; }, seconds(6)));
    flow.rate(milliseconds(500));
    set(pair, 0, fast_rate);
    flow.rate(seconds(8));
    EXPECT_EQ(counters(pair).traffic_moves.get(), failback ? 2U : 1U);
    EXPECT_EQ(counters(pair).detours_vain.get(), 0U);
    EXPECT_GT(flow.rate(seconds(1)), 0.8 * fast_rate);
  }
}

TEST_P(SlowPath, AReturnToAPrimaryThatIsStillSlowEndsSoon) {
  Config config = patient();
  config.enable_failback = true;
  config.failback_ms = 1000;
  SimPair pair = make(44, config);
  ASSERT_NO_FATAL_FAILURE(begin(pair));
  Flow flow(pair, 44, bytes_max, ahead);
  flow.rate(seconds(2));
  set(pair, 0, fast_rate / 16);
  ASSERT_TRUE(flow.run_until([&] { return counters(pair).detours.get() == 1; }, seconds(6)));
  const double rate = flow.rate(seconds(20));
  EXPECT_GT(rate, 0.8 * fast_rate);
  const uint64_t vain = counters(pair).detours_vain.get();
  EXPECT_GE(vain, 1U);
  EXPECT_LE(static_cast<double>(vain), 1 + std::log2(20.0));
  EXPECT_EQ(counters(pair).traffic_moves.get(), 1 + 2 * vain);
}

TEST_P(SlowPath, ZeroKeepsIt) {
  Config config = patient();
  config.slow_factor = 0;
  SimPair pair = make(45, config);
  ASSERT_NO_FATAL_FAILURE(begin(pair));
  Flow flow(pair, 45, bytes_max, ahead);
  flow.rate(seconds(2));
  set(pair, 0, fast_rate / 16);
  flow.rate(seconds(5));
  EXPECT_EQ(counters(pair).traffic_moves.get(), 0U);
}

TEST_P(SlowPath, AReceiverThatPostsLateMakesNoPathSlow) {
  SimPair pair = make(46);
  ASSERT_NO_FATAL_FAILURE(begin(pair));
  const Instant start = pair.world().now();
  rig::TransferPlan plan;
  plan.seed = 46;
  plan.groups = 500;
  plan.large = 1;
  plan.grouped = 0;
  plan.bytes_max = bytes_max;
  plan.released = [&] {  // 400 at once, then one every 100 ms
    return 400 + static_cast<uint64_t>((pair.world().now() - start) / milliseconds(100));
  };
  ASSERT_EQ(pair.transfer(plan, seconds(60)), "");
  EXPECT_GT(pair.world().now() - start, seconds(9));
  pass(pair, seconds(60));
  EXPECT_EQ(counters(pair).traffic_moves.get(), 0U);
}

TEST_P(SlowPath, TinyTrafficStaysOnASlowPath) {
  SimPair pair = make(47);
  ASSERT_NO_FATAL_FAILURE(begin(pair));
  rig::TransferPlan plan;
  plan.seed = 47;
  plan.groups = 300;
  plan.large = 1;
  plan.grouped = 0;
  plan.bytes_max = bytes_max;
  ASSERT_EQ(pair.transfer(plan, seconds(20)), "");
  set(pair, 0, fast_rate / 100);
  plan.large = 0;
  plan.groups = 3000;
  ASSERT_EQ(pair.transfer(plan, seconds(60)), "");
  EXPECT_EQ(counters(pair).traffic_moves.get(), 0U);
}

TEST_P(SlowPath, RandomSpeedsMoveItRarely) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    Config config = patient();
    config.enable_failback = seed % 2 == 0;
    SimPair pair = make(50 + seed, config);
    ASSERT_NO_FATAL_FAILURE(begin(pair));
    Random random(seed);
    Flow flow(pair, seed, bytes_max, ahead);
    flow.rate(seconds(1));
    for (int change = 0; change < 6; ++change) {
      for (size_t rail = 0; rail < 2; ++rail) {
        set(pair, rail, fast_rate / std::pow(10, 1.2 * random.unit()));
      }
      flow.rate(milliseconds(random.below(5'000)));
    }
    EXPECT_LE(counters(pair).detours.get(), 5U) << "seed " << seed;
    EXPECT_LE(counters(pair).traffic_moves.get(), 12U) << "seed " << seed;
  }
}

/// A window that does not grow carries ten segments in each round trip, 22 MB/s; as on fast
/// networks, an acknowledgement tells of several.
TEST(LongWay, IsFilledOverDatagrams) {
  sim::Link far;
  far.delay = milliseconds(2);
  far.rate = 100'000'000;
  Config config;
  config.dgram_ack_delay_us = 1000;
  SimPair pair(47, far, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  Flow flow(pair, 47);
  flow.rate(milliseconds(100));
  EXPECT_GT(flow.rate(milliseconds(200)), 60e6);
}

}  // namespace
}  // namespace nccl_ha::test
