// Several fallback paths of one connection, each over a rail of its own.
#include <gtest/gtest.h>

#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"
#include "tools/sim/failover_run.h"

namespace nccl_ha::test {
namespace {

using std::chrono::seconds;
using tools::FailoverRun;
using tools::FailoverTotals;
using tools::SimPair;

Config shadows_config(int64_t shadows) {
  Config config;
  config.shadow_paths = shadows;
  return config;
}

void set_rail(SimPair& pair, size_t rail, bool dark) {
  sim::Link link;
  link.cut = dark;
  pair.set_links(link, link, rail);
}

bool is_open(SendChannel& channel) {
  for (uint16_t i = 0; i < sends_max; ++i) {
    if (channel.slot(i).state.load() == RequestState::pending) {
      return true;
    }
  }
  return false;
}

class Shadows : public testing::TestWithParam<bool> {
 protected:
  static SimPair make(uint64_t seed, size_t rails, int64_t shadows) {
    return SimPair(seed, {}, shadows_config(shadows), {.rails = rails, .rdma = GetParam()});
  }
  static std::string transfer(SimPair& pair, uint64_t seed) {
    tools::TransferPlan plan;
    plan.seed = seed;
    return pair.transfer(plan, seconds(20));
  }
};
INSTANTIATE_TEST_SUITE_P(Fabrics, Shadows, testing::Bool(), [](const auto& one) {
  return std::string(one.param ? "rdma" : "datagrams");
});

/// Nobody waits for a path to be made: each of them stands by.
TEST_P(Shadows, EachTakesOverInItsTurnAndAtOnce) {
  SimPair pair = make(91, 4, 3);
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& failovers = pair.send_channel().counters();
  pass(pair, seconds(2));
  for (size_t rail = 0; rail < 3; ++rail) {
    set_rail(pair, rail, true);
    const Instant begin = pair.world().now();
    ASSERT_EQ(transfer(pair, 91 + rail), "") << "rail " << rail;
    EXPECT_LE(pair.world().now() - begin, seconds(2)) << "rail " << rail;
    EXPECT_EQ(failovers.traffic_moves.get(), rail + 1);
  }
  EXPECT_GT(pair.world().network().counts().cut + pair.world().rdma().counts.lost, 0U)
      << "the faults did not happen";
}

TEST_P(Shadows, NoTwoShareARail) {
  SimPair pair = make(92, 4, 3);
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(2));
  set_rail(pair, 2, true);
  pass(pair, seconds(10));
  EXPECT_EQ(pair.send_channel().counters().paths_down.get(), 1U);
}

/// Announcements go on over the second shadow, and traffic back to the first one, whose device's
/// keys were told for the path before.
TEST_P(Shadows, AReceiveThatWasOpenWhenAShadowWasReplacedCanBeWrittenOverIt) {
  Config config = shadows_config(2);
  config.enable_failback = true;
  config.failback_ms = 500;
  SimPair pair(96, {}, config, {.rails = 3, .rdma = GetParam()});
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& failovers = pair.send_channel().counters();
  pass(pair, seconds(2));
  set_rail(pair, 0, true);
  ASSERT_EQ(transfer(pair, 1), "");
  set_rail(pair, 1, true);
  ASSERT_EQ(transfer(pair, 2), "");
  ASSERT_EQ(failovers.traffic_moves.get(), 2U);
  pair.post_receives(2);
  pass(pair, seconds(10));  // in which the path is tried again, each time as another one
  set_rail(pair, 1, false);
  ASSERT_TRUE(
      pair.world().run_until([&] { return failovers.traffic_moves.get() == 3; }, seconds(60)));
  ASSERT_TRUE(pair.post_send(1 << 16)) << pair.error();
  ASSERT_TRUE(is_open(pair.send_channel()));
  EXPECT_TRUE(pair.world().run_until([&] { return !is_open(pair.send_channel()); }, seconds(5)));
  EXPECT_EQ(failovers.traffic_moves.get(), 3U);
}

TEST_P(Shadows, AShadowThatWasReplacedCarriesAgain) {
  SimPair pair = make(93, 3, 2);
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& failovers = pair.send_channel().counters();
  pass(pair, seconds(2));
  set_rail(pair, 0, true);
  ASSERT_EQ(transfer(pair, 1), "");
  set_rail(pair, 1, true);
  ASSERT_EQ(transfer(pair, 2), "");
  ASSERT_EQ(failovers.traffic_moves.get(), 2U);
  set_rail(pair, 1, false);
  ASSERT_TRUE(pair.world().run_until([&] { return failovers.paths_back.get() == 1; }, seconds(60)));
  set_rail(pair, 2, true);
  ASSERT_EQ(transfer(pair, 3), "");
  EXPECT_EQ(failovers.traffic_moves.get(), 3U);
}

TEST_P(Shadows, TheSideThatWantsFewerDecides) {
  for (const bool sender_wants_more : {true, false}) {
    SimPair pair(94, {}, shadows_config(sender_wants_more ? 3 : 1),
                 {.rails = 4, .rdma = GetParam()}, shadows_config(sender_wants_more ? 1 : 3));
    ASSERT_TRUE(pair.connect()) << pair.error();
    pass(pair, seconds(2));
    for (const size_t rail : {2U, 3U}) {
      set_rail(pair, rail, true);
    }
    pass(pair, seconds(10));
    EXPECT_EQ(pair.send_channel().counters().paths_down.get(), 0U) << "nothing lies there";
    ASSERT_EQ(transfer(pair, 94), "");
  }
}

/// More than there are rails for.
TEST_P(Shadows, WhatThereIsNoRailForIsMissedByNobody) {
  SimPair pair = make(95, 2, 4);
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(90));
  set_rail(pair, 0, true);
  ASSERT_EQ(transfer(pair, 95), "");
  EXPECT_EQ(pair.send_channel().counters().traffic_moves.get(), 1U);
}

/// Two rails without a router between them, of which the second one stands by and fails for a
/// while.
class ShadowLinks : public testing::Test {
 protected:
  void SetUp() override {
    const sim::Link cut{.cut = true};
    for (size_t rail = 0; rail < 2; ++rail) {
      const sim::Ip here = pair_.sender().addresses[rail];
      const sim::Ip there = pair_.receiver().addresses[1 - rail];
      pair_.world().network().set_link(here, there, cut);
      pair_.world().network().set_link(there, here, cut);
    }
    ASSERT_TRUE(pair_.connect()) << pair_.error();
    pass(pair_, seconds(2));
  }
  void tell(sim::Process& host, bool up) { pair_.world().tell_link(host, host.addresses[1], up); }
  /// The standby's rail; both hosts are told of its end.
  void outage(Duration time) {
    const uint64_t down = counters().paths_down.get();
    set_rail(pair_, 1, true);
    tell(pair_.sender(), false);
    tell(pair_.receiver(), false);
    pass(pair_, time);
    ASSERT_EQ(counters().paths_down.get(), down + 1) << "the fault did not happen";
    set_rail(pair_, 1, false);
  }
  Duration back_after() {
    const Instant begin = pair_.world().now();
    const uint64_t down = counters().paths_down.get();
    EXPECT_TRUE(
        pair_.world().run_until([&] { return counters().paths_back.get() == down; }, seconds(120)));
    return pair_.world().now() - begin;
  }
  const ConnectionCounters& counters() { return pair_.send_channel().counters(); }

  static constexpr Duration soon = std::chrono::milliseconds(200);
  SimPair pair_{97, {}, shadows_config(1), {.rails = 2}};
};

TEST_F(ShadowLinks, StandsByAgainSoonAfterTheSendersLink) {
  for (const Duration time : {seconds(1), seconds(4), seconds(7), seconds(11), seconds(60)}) {
    outage(time);
    tell(pair_.sender(), true);
    EXPECT_LE(back_after(), soon) << time.count();
    pass(pair_, seconds(5));
  }
}

TEST_F(ShadowLinks, StandsByAgainSoonAfterTheReceiversLink) {
  for (const Duration time : {seconds(1), seconds(4), seconds(7), seconds(11), seconds(60)}) {
    outage(time);
    tell(pair_.receiver(), true);
    EXPECT_LE(back_after(), soon) << time.count();
    pass(pair_, seconds(5));
  }
}

/// Whoever is told first tries before the other end can answer.
TEST_F(ShadowLinks, OneEndMayHearOfItBeforeTheOther) {
  for (const bool sender_first : {true, false}) {
    for (const Duration time : {seconds(1), seconds(4), seconds(7), seconds(60)}) {
      tell(sender_first ? pair_.sender() : pair_.receiver(), true);
      outage(time);
      tell(sender_first ? pair_.sender() : pair_.receiver(), true);
      set_rail(pair_, 1, true);
      pass(pair_, seconds(1));
      set_rail(pair_, 1, false);
      tell(sender_first ? pair_.receiver() : pair_.sender(), true);
      EXPECT_LE(back_after(), soon) << time.count();
      pass(pair_, seconds(5));
    }
  }
}

/// A switch that forwards nothing leaves the links of both hosts as they are.
TEST_F(ShadowLinks, StandsByAgainWithinSecondsWhereNobodyIsTold) {
  for (const Duration time : {seconds(4), seconds(60), seconds(600)}) {
    set_rail(pair_, 1, true);
    pass(pair_, time);
    ASSERT_GT(counters().paths_down.get(), 0U) << "the fault did not happen";
    set_rail(pair_, 1, false);
    EXPECT_LE(back_after(), seconds(14)) << time.count();
    pass(pair_, seconds(5));
  }
}

/// While nothing of it can be confirmed.
TEST_F(ShadowLinks, ALinkThatComesAndGoesFillsNoQueue) {
  const auto dark = [&](bool cut) {
    set_rail(pair_, 0, cut);
    set_rail(pair_, 1, cut);
  };
  dark(true);
  pass(pair_, seconds(2));
  for (int i = 0; i < 2000; ++i) {
    tell(pair_.receiver(), i % 2 == 0);
    pass(pair_, std::chrono::milliseconds(1));
  }
  ASSERT_GT(counters().paths_down.get(), 0U) << "the fault did not happen";
  dark(false);
  tools::TransferPlan plan;
  plan.seed = 97;
  EXPECT_EQ(pair_.transfer(plan, seconds(20)), "");
}

TEST(SimShadows, RailsFailWhileBytesAreChecked) {
  const uint64_t runs = sim_seeds() / 8;
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    FailoverRun run;
    run.seed = 9000000 + seed;
    run.rails = 3 + seed % 2;
    run.shadows = 2 + seed % 3;
    run.rdma = seed % 4 != 0;
    ASSERT_EQ(tools::run_failovers(run, &totals), "") << "seed " << run.seed;
  }
  EXPECT_GT(totals.down, runs);
  EXPECT_GT(totals.moves, runs / 2);
}

}  // namespace
}  // namespace nccl_ha::test
