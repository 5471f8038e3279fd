// Failover on virtual time: paths that die, or are only believed to, while everything else goes
// wrong too; and every byte is checked, also after its receive was done.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/rig/runs/failover_run.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha::test {
namespace {

using rig::failover_config;
using rig::FailoverTotals;
using rig::run_failovers;
using rig::SimPair;
using std::chrono::seconds;

TEST(SimFailover, PathsBelievedDeadWhileTheyLive) {
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= sim_seeds(); ++seed) {
    ASSERT_EQ(run_failovers({seed, 1.0, {}, {}}, &totals), "") << "seed " << seed;
  }
  EXPECT_GT(totals.down, sim_seeds());
  EXPECT_GT(totals.back, sim_seeds());
  EXPECT_GT(totals.chunks_again, 0U) << "nothing was ever lost";
  EXPECT_GT(totals.chunks_kept, 0U) << "no acknowledgement was ever lost";
}

TEST(SimFailover, CutsInEitherDirectionAndFalseVerdicts) {
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= sim_seeds(); ++seed) {
    ASSERT_EQ(run_failovers({1000000 + seed, 0.5, {}, {}}, &totals), "")
        << "seed " << 1000000 + seed;
  }
  EXPECT_GT(totals.down, sim_seeds());
  EXPECT_GT(totals.back, sim_seeds());
  EXPECT_GT(totals.packets_cut, sim_seeds());
}

TEST(SimFailover, TwoRailsOfWhichOneMayGoForGood) {
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= sim_seeds(); ++seed) {
    ASSERT_EQ(run_failovers({.seed = 2000000 + seed, .rails = 2}, &totals), "")
        << "seed " << 2000000 + seed;
  }
  EXPECT_GT(totals.cuts_for_good, sim_seeds() / 10);
  EXPECT_GT(totals.moves, sim_seeds() / 2) << "traffic hardly ever took the other rail";
  EXPECT_GT(totals.down, sim_seeds());
}

TEST(SimFailover, ARailThatIsGoneForGoodCostsNoMoreThanTheTimeToNotice) {
  SimPair pair(21, {}, {}, {.rails = 2});
  ASSERT_TRUE(pair.connect()) << pair.error();
  // The shadow is made after the handshake.
  auto& failovers = pair.send_channel().counters();
  pair.post_receives(8);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  pair.world().run_until([] { return false; }, seconds(1));
  sim::Link dark;
  dark.cut = true;
  pair.set_links(dark, dark, 0);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  const Instant cut = pair.world().now();
  ASSERT_TRUE(
      pair.world().run_until([&] { return failovers.traffic_moves.get() == 1; }, seconds(5)));
  // The limit, and up to a heartbeat until an idle connection looks.
  EXPECT_LE(pair.world().now() - cut, std::chrono::milliseconds(450));
  EXPECT_GT(pair.world().network().counts().cut, 0U) << "the fault did not happen";
  // Long after the stream over the dead rail has broken, too.
  pair.world().run_until([] { return false; }, seconds(100));
  EXPECT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
  EXPECT_TRUE(pair.post_send(1 << 20)) << pair.error();
}

TEST(SimFailover, AnIdleConnectionIsLeftWhereItIs) {
  SimPair pair(24, {}, {}, {.rails = 2});
  ASSERT_TRUE(pair.connect()) << pair.error();
  // Receives that nobody sends anything for, now and then: silence is all there is to see.
  for (int i = 0; i < 20; ++i) {
    pair.post_receives(1);
    pair.world().run_until([] { return false; }, std::chrono::milliseconds(333));
  }
  for (const Channel* side : {static_cast<const Channel*>(&pair.send_channel()),
                              static_cast<const Channel*>(&pair.receive_channel())}) {
    EXPECT_EQ(side->counters().paths_down.get(), 0U);
    EXPECT_EQ(side->counters().traffic_moves.get(), 0U);
  }
}

TEST(SimFailover, AnIdleConnectionFindsADeadRailWithinItsHeartbeats) {
  SimPair pair(25, {}, {}, {.rails = 2});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.world().run_until([] { return false; }, seconds(1));
  sim::Link dark;
  dark.cut = true;
  pair.set_links(dark, dark, 0);
  const Instant cut = pair.world().now();
  const auto& failovers = pair.send_channel().counters();
  ASSERT_TRUE(
      pair.world().run_until([&] { return failovers.traffic_moves.get() == 1; }, seconds(5)));
  EXPECT_LE(pair.world().now() - cut, std::chrono::milliseconds(4 * 200 + 50));
}

TEST(SimFailover, TrafficGoesBackWhenTheOwnNicHasWorkedForLongEnough) {
  Config config;
  config.enable_failback = true;
  config.failback_ms = 2000;
  SimPair pair(22, {}, config, {.rails = 2});
  ASSERT_TRUE(pair.connect()) << pair.error();
  auto& failovers = pair.send_channel().counters();
  const auto wait = [&](auto time) { pair.world().run_until([] { return false; }, time); };
  wait(seconds(1));
  ASSERT_TRUE(pair.send_driver().suspect(0));
  ASSERT_TRUE(pair.world().run_until([&] { return failovers.paths_back.get() == 1; }, seconds(5)));
  EXPECT_EQ(failovers.traffic_moves.get(), 1U);
  const Instant back = pair.world().now();
  ASSERT_TRUE(
      pair.world().run_until([&] { return failovers.traffic_moves.get() == 2; }, seconds(10)));
  EXPECT_GE(pair.world().now() - back, seconds(2)) << "it went back too early";
  // It fails again at once: the next time it has to prove itself for longer.
  ASSERT_TRUE(pair.send_driver().suspect(0));
  ASSERT_TRUE(pair.world().run_until([&] { return failovers.paths_back.get() == 2; }, seconds(5)));
  EXPECT_EQ(failovers.traffic_moves.get(), 3U);
  wait(std::chrono::milliseconds(3900));
  EXPECT_EQ(failovers.traffic_moves.get(), 3U) << "flapping costs as much as ever";
  wait(std::chrono::milliseconds(300));
  EXPECT_EQ(failovers.traffic_moves.get(), 4U);
}

TEST(SimFailover, WithoutFailbackTrafficStaysWhereItWent) {
  SimPair pair(23, {}, {}, {.rails = 2});
  ASSERT_TRUE(pair.connect()) << pair.error();
  auto& failovers = pair.send_channel().counters();
  const auto wait = [&](auto time) { pair.world().run_until([] { return false; }, time); };
  wait(seconds(1));
  ASSERT_TRUE(pair.send_driver().suspect(0));
  wait(seconds(60));
  EXPECT_EQ(failovers.paths_back.get(), 1U);
  EXPECT_EQ(failovers.traffic_moves.get(), 1U);
  ASSERT_TRUE(pair.send_driver().suspect(1)) << "until that one fails";
  wait(seconds(1));
  EXPECT_EQ(failovers.traffic_moves.get(), 2U);
}

TEST(SimFailover, APeerThatDiesEndsEverythingWithinTheBudget) {
  Config config = failover_config(2);
  config.retry_budget_ms = 5000;
  SimPair pair(9, {}, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.post_receives(4);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  pair.world().power_off(pair.receiver());
  const Instant killed = pair.world().now();
  ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(6)));
  EXPECT_GE(pair.world().now() - killed, seconds(5)) << "it gave up before its time";
  EXPECT_GT(pair.world().network().counts().cut, 0U) << "the fault did not happen";
  EXPECT_NE(pair.send_channel().failure().what.find("HA_NCCL_RETRY_BUDGET_MS"), std::string::npos)
      << pair.send_channel().failure().what;
}

TEST(SimFailover, APartitionLongerThanTheBudgetFailsBothSidesForGood) {
  Config config = failover_config(1);
  config.retry_budget_ms = 2000;
  SimPair pair(10, {}, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.post_receives(4);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  sim::Link cut;
  cut.cut = true;
  pair.set_links(cut, cut);
  ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(4)));
  pair.set_links({}, {});
  EXPECT_TRUE(pair.world().run_until(
      [&] { return pair.receive_channel().phase() == Phase::failed; }, seconds(60)))
      << "one side goes on with a connection that the other has given up";
  EXPECT_EQ(pair.send_channel().phase(), Phase::failed);
}

TEST(SimFailover, APathThatComesUpAndFailsInALoopIsTriedLessOftenAndNotForEver) {
  Config config = failover_config(1);
  config.max_retries = 4;
  SimPair pair(13, {}, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& channel = pair.send_channel();
  const Instant begin = pair.world().now();
  for (uint64_t failure = 1; failure <= 4; ++failure) {
    ASSERT_TRUE(pair.send_driver().suspect(0));
    ASSERT_TRUE(pair.world().run_until(
        [&] { return channel.counters().paths_back.get() == failure; }, seconds(5)))
        << failure;
  }
  // The first attempt goes at once, the others wait for at least half of 20, 40 and 80 ms.
  EXPECT_GE(pair.world().now() - begin, std::chrono::milliseconds(70));
  ASSERT_TRUE(pair.send_driver().suspect(0));
  ASSERT_TRUE(pair.world().run_until(
      [&] {
        return channel.phase() == Phase::failed && pair.receive_channel().phase() == Phase::failed;
      },
      seconds(5)));
  EXPECT_NE(channel.failure().what.find("HA_NCCL_MAX_RETRIES"), std::string::npos)
      << channel.failure().what;
}

}  // namespace
}  // namespace nccl_ha::test
