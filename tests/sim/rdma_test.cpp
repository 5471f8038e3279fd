// Failover over simulated RDMA NICs, beneath the fabric that drives real ones.
#include <gtest/gtest.h>

#include "tests/rig/runs/failover_run.h"
#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha::test {
namespace {

using rig::classic_run;
using rig::FailoverRun;
using rig::FailoverTotals;
using rig::run_failovers;
using rig::SimLink;
using rig::SimPair;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

void cut(SimPair& pair, size_t rail) {
  sim::Link dark;
  dark.cut = true;
  pair.set_links(dark, dark, rail);
}

/// Queue pairs on the first rail do not give back all their work.
void keep_work(SimPair& pair) {
  for (sim::Process* host : {&pair.sender(), &pair.receiver()}) {
    host->nics[0]->verbs().faults.keeps_work = 1;
  }
}

TEST(SimRdma, NicsPortsAddressesAndCablesFailWhileBytesAreChecked) {
  const uint64_t runs = sim_seeds();
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    FailoverRun run;
    run.seed = 3000000 + seed;
    run.rails = 2;
    run.rdma = true;
    ASSERT_EQ(run_failovers(run, &totals), "") << "seed " << run.seed;
  }
  EXPECT_GT(totals.down, runs);
  EXPECT_GT(totals.moves, runs / 2);
  EXPECT_GT(totals.ports_down, runs / 10);
  EXPECT_GT(totals.gids_moved, runs / 10);
  EXPECT_GT(totals.devices_lost, runs / 20);
  EXPECT_GT(totals.devices_hung, runs / 50);
  EXPECT_GT(totals.slow, runs / 10);
  EXPECT_GT(totals.completions_late, runs / 10);
  EXPECT_GT(totals.packets_too_late, runs) << "no write of an old path came late";
  EXPECT_GT(totals.chunks_kept, 0U) << "no completion was ever lost behind its data";
  EXPECT_GT(totals.places_found, runs) << "each message waited for a completion";
  // What is posted again must hardly be more than what never arrived.
  EXPECT_GT(totals.bytes_lost, 0U);
  EXPECT_LE(static_cast<double>(totals.bytes_replayed),
            1.1 * static_cast<double>(totals.bytes_lost));
}

TEST(SimRdma, DatagramsTakeOverAndRdmaAgain) {
  const uint64_t runs = sim_seeds();
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    FailoverRun run = classic_run(8 * seed + 3);  // one rail and a spare interface
    run.seed += 4000000;
    ASSERT_TRUE(run.spare && run.rails == 1);
    ASSERT_EQ(run_failovers(run, &totals), "") << "seed " << run.seed;
  }
  EXPECT_GT(totals.moves, runs / 2);
  EXPECT_GT(totals.devices_lost, runs / 20);
  EXPECT_GT(totals.devices_hung, runs / 50);
}

TEST(SimRdma, TrafficLeavesTheFallbackPathWithoutBeingToldTo) {
  Config config;
  config.failback_ms = 500;
  ASSERT_FALSE(config.enable_failback);
  SimPair pair(31, {}, config, {.rails = 1, .rdma = true, .spare = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  auto& failovers = pair.send_channel().counters();
  pair.post_receives(8);
  pass(pair, seconds(1));
  cut(pair, 0);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  ASSERT_TRUE(
      pair.world().run_until([&] { return failovers.traffic_moves.get() == 1; }, seconds(5)));
  EXPECT_GT(pair.world().network().counts().cut, 0U) << "the fault did not happen";
  pair.set_links({}, {}, 0);
  EXPECT_TRUE(
      pair.world().run_until([&] { return failovers.traffic_moves.get() == 2; }, seconds(10)));
}

/// What stands by carries RDMA: the first NIC goes, and the interface for datagrams.
void expect_rdma_standby(SimPair& pair) {
  const auto& failovers = pair.send_channel().counters();
  const uint64_t rdma = pair.world().rdma().counts.packets;
  cut(pair, 0);
  cut(pair, 2);
  pair.post_receives(2);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  ASSERT_TRUE(
      pair.world().run_until([&] { return failovers.traffic_moves.get() == 1; }, seconds(5)));
  pass(pair, seconds(1));
  EXPECT_GT(pair.world().rdma().counts.packets, rdma + 256);
}

TEST(SimRdma, AnRdmaPortThatComesBackTakesTheFallbacksPlace) {
  SimPair pair(36, {}, {}, {.rails = 2, .rdma = true, .spare = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& failovers = pair.send_channel().counters();
  pass(pair, seconds(1));
  // On the receiver's side: the sender's own link is never gone.
  pair.receiver().nics[1]->set_port(false);
  ASSERT_TRUE(pair.world().run_until([&] { return failovers.paths_back.get() == 1; }, seconds(60)));
  pass(pair, seconds(5));
  pair.receiver().nics[1]->set_port(true);
  ASSERT_TRUE(pair.world().run_until([&] { return failovers.paths_back.get() == 2; }, seconds(10)));
  expect_rdma_standby(pair);
}

/// The first one is looked for in vain, and the second one is news nevertheless.
TEST(SimRdma, PortsThatComeBackOneAfterTheOtherTakeTheFallbacksPlace) {
  for (const bool sender_first : {true, false}) {
    SimPair pair(37, {}, {}, {.rails = 2, .rdma = true, .spare = true});
    ASSERT_TRUE(pair.connect()) << pair.error();
    const auto& failovers = pair.send_channel().counters();
    pass(pair, seconds(1));
    for (sim::Process* host : {&pair.sender(), &pair.receiver()}) {
      host->nics[1]->set_port(false);
    }
    ASSERT_TRUE(
        pair.world().run_until([&] { return failovers.paths_back.get() == 1; }, seconds(60)));
    pass(pair, seconds(5));
    for (const bool sender : {sender_first, !sender_first}) {
      (sender ? pair.sender() : pair.receiver()).nics[1]->set_port(true);
      pass(pair, seconds(3));
    }
    pass(pair, seconds(2));
    expect_rdma_standby(pair);
  }
}

TEST(SimRdma, WithoutLeaveDatagramsDoNotTakeOver) {
  Config config;
  config.shadow_datagrams = false;
  config.retry_budget_ms = 3000;
  SimPair pair(32, {}, config, {.rails = 1, .rdma = true, .spare = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.post_receives(1);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  cut(pair, 0);
  ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(10)));
  EXPECT_EQ(pair.send_channel().counters().traffic_moves.get(), 0U);
}

TEST(SimRdma, APortThatSaysItIsDownMovesTrafficAtOnce) {
  SimPair pair(33, {}, {}, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  auto& failovers = pair.send_channel().counters();
  pass(pair, seconds(1));
  pair.sender().nics[0]->set_port(false);
  ASSERT_TRUE(
      pair.world().run_until([&] { return failovers.traffic_moves.get() == 1; }, seconds(5)));
  EXPECT_LE(pair.world().now() - Instant(seconds(2)), milliseconds(10));
}

// Soft-RoCE does so; a second was lost with each failover.
TEST(SimRdma, WorkThatTheDeviceKeepsHoldsUpAFailoverForMilliseconds) {
  SimPair pair(37, {}, {}, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  keep_work(pair);
  pair.post_receives(1);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  pass(pair, microseconds(50));
  const Instant begin = pair.world().now();
  pair.sender().nics[0]->set_port(false);
  const auto done = [&] {
    for (uint16_t i = 0; i < receives_max; ++i) {
      if (pair.receive_channel().slot(i).state.load() == RequestState::done) {
        return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(pair.world().run_until(done, seconds(5)));
  EXPECT_GT(pair.world().rdma().counts.kept, 0U);
  EXPECT_GT(pair.send_channel().counters().chunks_again.get(), 0U);
  EXPECT_LE(pair.world().now() - begin, milliseconds(25));
}

TEST(SimRdma, AQueuePairThatCannotBeEndedEndsTheConnectionThatWaitsForIt) {
  Config config;
  config.retry_budget_ms = 8000;
  SimPair pair(38, {}, config, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  keep_work(pair);
  for (sim::Process* host : {&pair.sender(), &pair.receiver()}) {
    host->nics[0]->verbs().faults[sim::Verb::destroy_pair] = 1;
  }
  pair.post_receives(1);
  pass(pair, milliseconds(1));
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  pair.sender().nics[0]->set_port(false);
  ASSERT_TRUE(pair.world().run_until(
      [&] {
        return pair.send_channel().phase() == Phase::failed &&
               pair.receive_channel().phase() == Phase::failed;
      },
      seconds(9)));
  EXPECT_NE(pair.send_channel().failure().message().find("does not say what had arrived"),
            std::string::npos)
      << pair.send_channel().failure().message();
}

TEST(SimRdma, AQueuePairThatCannotBeEndedEndsNothingWhereNothingWasUnderWay) {
  Config config;
  config.retry_budget_ms = 8000;
  SimPair pair(38, {}, config, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  for (sim::Process* host : {&pair.sender(), &pair.receiver()}) {
    host->nics[0]->verbs().faults[sim::Verb::to_error] = 1;
    host->nics[0]->verbs().faults[sim::Verb::destroy_pair] = 1;
  }
  pair.post_receives(1);
  pass(pair, milliseconds(1));
  pair.sender().nics[0]->set_port(false);
  pass(pair, seconds(20));
  ASSERT_EQ(pair.send_channel().counters().paths_down.get(), 1U) << "the fault did not happen";
  ASSERT_TRUE(pair.post_send(1000)) << pair.error();
  EXPECT_TRUE(pair.world().run_until(
      [&] { return pair.send_channel().counters().sends_done.get() == 1; }, seconds(1)));
}

TEST(SimRdma, ALaneThatWasAbandonedHasANewPathAfterTheProof) {
  SimPair pair(41, {}, {}, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  auto& counters = pair.send_channel().counters();
  sim::DeviceFaults& faults = pair.sender().nics[0]->verbs().faults;
  faults.slow = 1;
  faults.slowest = seconds(2);
  ASSERT_TRUE(pair.send_driver().suspect(0));
  pair.send_driver().turn();
  pass(pair, milliseconds(200));
  ASSERT_EQ(counters.paths_down.get(), 1U);
  EXPECT_EQ(pair.receive_channel().counters().paths_down.get(), 0U) << "it is not told so early";
  pass(pair, milliseconds(100));
  EXPECT_EQ(pair.receive_channel().counters().paths_down.get(), 1U) << "it was not abandoned";
  faults.slow = 0;
  EXPECT_EQ(counters.paths_back.get(), 0U) << "its device has not said anything yet";
  EXPECT_TRUE(pair.world().run_until([&] { return counters.paths_back.get() == 1; }, seconds(5)));
}

/// That sender takes nothing down, so that nothing can be announced over another path.
void fail_receiver_beside_a_sender_that_stands_still(SimPair& pair, Duration stands) {
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  pair.world().pause(pair.sender(), pair.world().now() + stands);
  pair.receiver().nics[0]->set_port(false);
  pass(pair, seconds(5));
  ASSERT_EQ(pair.receive_channel().counters().paths_down.get(), 1U) << "the fault did not happen";
}

Config with_short_budget() {
  Config config;
  config.retry_budget_ms = 2000;
  return config;
}

TEST(SimRdma, AReceiverWithNothingOpenWaitsForASenderThatStandsStill) {
  SimPair pair(44, {}, with_short_budget(), {.rails = 2, .rdma = true});
  fail_receiver_beside_a_sender_that_stands_still(pair, seconds(10));
  pass(pair, seconds(10));
  EXPECT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
  EXPECT_EQ(pair.receive_channel().phase(), Phase::ready) << pair.error();
  expect_transfers(pair);
}

/// The time without a path begins with the receive that lacks one.
TEST(SimRdma, AReceiveThatCannotBeAnnouncedIsAClearErrorInTime) {
  SimPair pair(45, {}, with_short_budget(), {.rails = 2, .rdma = true});
  fail_receiver_beside_a_sender_that_stands_still(pair, seconds(60));
  ASSERT_EQ(pair.receive_channel().phase(), Phase::ready) << pair.error();
  const Instant begin = pair.world().now();
  pair.post_receives(1);
  ASSERT_TRUE(pair.world().run_until(
      [&] { return pair.receive_channel().phase() == Phase::failed; }, seconds(5)));
  EXPECT_GE(pair.world().now() - begin, milliseconds(1900));
  EXPECT_LE(pair.world().now() - begin, milliseconds(2200));
  const std::string why = pair.receive_channel().failure().message();
  EXPECT_NE(why.find("HA_NCCL_RETRY_BUDGET_MS"), std::string::npos) << why;
}

TEST(SimRdma, WhatOneThreadFindsOutTheOthersUse) {
  // Nothing would be noticed by itself for minutes.
  Config config;
  config.progress_threads = 2;
  config.heartbeat_ms = 60000;
  SimPair pair(34, {}, config, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  SimLink idle(pair.world(), pair.sender(), pair.receiver());
  ASSERT_TRUE(idle.wait_ready()) << idle.error();
  for (size_t thread = 0; thread < 2; ++thread) {
    ASSERT_GE(pair.sender().engine->worker(thread).actor_count(), 1U) << "both on one thread";
  }
  pair.post_receives(2);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  pass(pair, seconds(1));
  cut(pair, 0);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  const Instant begin = pair.world().now();
  ASSERT_TRUE(pair.world().run_until(
      [&] {
        return pair.send_channel().counters().traffic_moves.get() == 1 &&
               idle.sender().counters().traffic_moves.get() == 1;
      },
      seconds(5)))
      << idle.sender().counters().traffic_moves.get();
  EXPECT_LE(pair.world().now() - begin, milliseconds(600));
}

TEST(SimRdma, DataThatAFailingNicAcknowledgedAndForgotIsAnErrorAndNoHang) {
  int happened = 0;
  int errors = 0;
  int survived = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SimPair pair(seed, {}, {}, {.rails = 2, .rdma = true});
    pair.world().rdma().late = 0.03;  // with many nothing would ever survive
    pair.world().rdma().latest = milliseconds(2);
    ASSERT_TRUE(pair.connect()) << pair.error();
    pass(pair, milliseconds(10));
    rig::TransferPlan plan;
    plan.seed = seed;
    Random random(seed);
    const Instant end = pair.world().now() + std::chrono::microseconds(20 + random.below(1000));
    pair.world().network().stop_at(end);
    plan.each_round = [&] {
      if (pair.world().now() >= end) {
        pair.receiver().nics[0]->fail_for_good({.forgets = true});
      }
    };
    const std::string outcome = pair.transfer(plan, seconds(60));
    happened += pair.receiver().nics[0]->failed() ? 1 : 0;
    const bool told = outcome.find("between acknowledging data and writing") != std::string::npos;
    EXPECT_TRUE(outcome.empty() || told) << "seed " << seed << ": " << outcome;
    errors += told ? 1 : 0;
    survived += outcome.empty() ? 1 : 0;
  }
  EXPECT_GT(happened, 20) << "the transfer was mostly over before";
  EXPECT_GT(errors, 0) << "nothing was ever forgotten";
  EXPECT_GT(survived, 0) << "everything was always forgotten";
}

TEST(SimRdma, TheSameSeedGivesTheSameRun) {
  uint64_t traces[2];
  for (uint64_t& trace : traces) {
    SimPair pair(35, {}, {}, {.rails = 2, .rdma = true, .spare = true});
    ASSERT_TRUE(pair.connect()) << pair.error();
    rig::TransferPlan plan;
    plan.seed = 35;
    ASSERT_EQ(pair.transfer(plan, seconds(20)), "");
    trace = pair.world().network().trace();
  }
  EXPECT_EQ(traces[0], traces[1]);
}

}  // namespace
}  // namespace nccl_ha::test
