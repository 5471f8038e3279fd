// Who is found dead, when, and who is not: peers whose host is gone, and processes that merely did
// not run for a while.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/rig/runs/pair.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

enum class Work { none, receives_posted, sends_acknowledged };

/// The host of one side goes: the other side ends within the bound.
void expect_end(uint64_t seed, size_t rails, bool rdma, bool sender_dies, Work work) {
  SCOPED_TRACE(fmt::format("seed {} rails {} rdma {} sender dies {} work {}", seed, rails, rdma,
                           sender_dies, static_cast<int>(work)));
  Config config;
  config.retry_budget_ms = 5000;
  SimPair pair(seed, {}, config, {.rails = rails, .rdma = rdma});
  ASSERT_TRUE(pair.connect()) << pair.error();
  if (work != Work::none) {
    pair.post_receives(2);
  }
  if (work == Work::sends_acknowledged) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(pair.post_send(1 << 16)) << pair.error();
    }
  }
  pass(pair, seconds(2));
  pair.world().power_off(sender_dies ? pair.sender() : pair.receiver());
  const Channel& left = sender_dies ? static_cast<const Channel&>(pair.receive_channel())
                                    : static_cast<const Channel&>(pair.send_channel());
  const Instant killed = pair.world().now();
  EXPECT_TRUE(pair.world().run_until([&] { return left.phase() == Phase::failed; }, hours(1)))
      << "nobody ever noticed";
  EXPECT_LE(pair.world().now() - killed, end_bound(config));
  EXPECT_GE(pair.world().now() - killed, milliseconds(config.retry_budget_ms)) << "hasty";
  EXPECT_GT(pair.world().network().counts().cut, 0U) << "the fault did not happen";
}

TEST(SimLiveness, APeerWhoseHostIsGoneEndsAConnectionWithOnePathOrTwo) {
  uint64_t seed = 40;
  for (const size_t rails : {1, 2}) {
    for (const bool rdma : {false, true}) {
      for (const bool sender_dies : {false, true}) {
        for (const Work work : {Work::none, Work::receives_posted, Work::sends_acknowledged}) {
          expect_end(++seed, rails, rdma, sender_dies, work);
        }
      }
    }
  }
}

/// Nobody knows yet how fast the path is.
TEST(SimLiveness, APeerWhoseHostIsGoneUnderAFirstLargeMessageEndsTheConnectionALittleLater) {
  Config config;
  config.retry_budget_ms = 5000;
  constexpr size_t bytes = 1 << 20;  // 0.2 us each
  constexpr auto added = milliseconds(210);
  SimPair pair(65, {}, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.post_receives(1);
  pass(pair, seconds(2));
  ASSERT_TRUE(pair.post_send(bytes)) << pair.error();
  pair.world().power_off(pair.receiver());
  const Instant killed = pair.world().now();
  ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     hours(1)));
  EXPECT_LE(pair.world().now() - killed, end_bound(config) + added);
  EXPECT_GT(pair.world().network().counts().cut, 0U) << "the fault did not happen";
}

TEST(SimLiveness, WithoutHeartbeatsAnIdleConnectionSendsNothing) {
  Config config;
  config.heartbeat_ms = 0;
  SimPair pair(60, {}, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(2));
  const uint64_t before = pair.world().network().counts().packets;
  pass(pair, seconds(100));
  EXPECT_EQ(pair.world().network().counts().packets, before);
}

uint64_t given_up(SimPair& pair) {
  return pair.send_channel().counters().paths_down.get() +
         pair.receive_channel().counters().paths_down.get();
}

struct Hosts {
  size_t rails = 1;
  bool rdma = false;
  bool spare = false;
};
constexpr Hosts all_hosts[] = {
    {1, false, false}, {2, false, false}, {1, true, false}, {2, true, false}, {1, true, true}};

std::string text(const Hosts& hosts, bool sender, int64_t ms) {
  return fmt::format("rails {} rdma {} spare {}, the {} pauses for {} ms", hosts.rails, hosts.rdma,
                     hosts.spare, sender ? "sender" : "receiver", ms);
}

constexpr int64_t pauses_ms[] = {300, 700, 1200, 1900, 2500};

TEST(SimLiveness, AProcessThatPausesWhileDataFlowsGivesUpNoPathAndIsNotGivenUp) {
  uint64_t seed = 70;
  for (const Hosts& hosts : all_hosts) {
    for (const bool sender : {false, true}) {
      for (const int64_t ms : pauses_ms) {
        SCOPED_TRACE(text(hosts, sender, ms));
        SimPair pair(++seed, {}, {}, {hosts.rails, hosts.rdma, hosts.spare});
        ASSERT_TRUE(pair.connect()) << pair.error();
        pass(pair, seconds(1));
        const Instant begin = pair.world().now();
        bool paused = false;
        rig::TransferPlan plan;
        plan.groups = 40;
        plan.seed = seed;
        plan.each_round = [&] {
          if (!paused && pair.world().now() >= begin + std::chrono::microseconds(100)) {
            paused = true;
            pair.world().pause(sender ? pair.sender() : pair.receiver(),
                               pair.world().now() + milliseconds(ms));
          }
        };
        EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
        EXPECT_TRUE(paused);
        EXPECT_GE(pair.world().now() - begin, milliseconds(ms)) << "it met no pause";
        pass(pair, seconds(2));
        EXPECT_EQ(given_up(pair), 0U);
      }
    }
  }
}

TEST(SimLiveness, AnIdleProcessThatPausesGivesUpNoPathAndIsNotGivenUp) {
  uint64_t seed = 130;
  for (const Hosts& hosts : all_hosts) {
    for (const bool sender : {false, true}) {
      for (const int64_t ms : pauses_ms) {
        SCOPED_TRACE(text(hosts, sender, ms));
        SimPair pair(++seed, {}, {}, {hosts.rails, hosts.rdma, hosts.spare});
        ASSERT_TRUE(pair.connect()) << pair.error();
        pair.post_receives(1);
        pass(pair, milliseconds(1000 + static_cast<int64_t>(seed * 37 % 200)));
        pair.world().pause(sender ? pair.sender() : pair.receiver(),
                           pair.world().now() + milliseconds(ms));
        pass(pair, seconds(6));
        EXPECT_EQ(given_up(pair), 0U);
      }
    }
  }
}

TEST(SimLiveness, ProcessesThatPauseAgainAndAgainGiveUpNoPath) {
  for (uint64_t seed = 190; seed < 200; ++seed) {
    const Hosts& hosts = all_hosts[seed % std::size(all_hosts)];
    SCOPED_TRACE(fmt::format("seed {} {}", seed, text(hosts, true, 0)));
    SimPair pair(seed, {}, {}, {hosts.rails, hosts.rdma, hosts.spare});
    ASSERT_TRUE(pair.connect()) << pair.error();
    Random random(seed);
    sim::World& world = pair.world();
    const Instant begin = world.now();
    Instant next = begin;
    int pauses = 0;
    rig::TransferPlan plan;
    plan.groups = 100;
    plan.seed = seed;
    plan.released = [&] {
      return static_cast<uint64_t>((world.now() - begin) / milliseconds(300));
    };
    plan.each_round = [&] {
      if (world.now() >= next) {
        ++pauses;
        world.pause(random.chance(0.5) ? pair.sender() : pair.receiver(),
                    world.now() + milliseconds(random.below(400)));
        next = world.now() + milliseconds(random.below(500));
        world.network().stop_at(next);
      }
    };
    EXPECT_EQ(pair.transfer(plan, seconds(60)), "");
    EXPECT_GT(pauses, 80);
    pass(pair, seconds(2));
    EXPECT_EQ(given_up(pair), 0U);
  }
}

TEST(SimLiveness, AProcessThatPausesForLongerThanAnybodyWaitsIsGivenUp) {
  SimPair pair(201, {}, {});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  pair.world().pause(pair.receiver(), pair.world().now() + seconds(10));
  pass(pair, milliseconds(3300));
  EXPECT_EQ(pair.send_channel().counters().paths_down.get(), 1U);
  pass(pair, seconds(20));
  EXPECT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
  EXPECT_EQ(pair.send_channel().counters().paths_back.get(), 1U);
}

TEST(SimLiveness, HostsThatBothStandStillForLongGiveUpNothing) {
  // As when a whole machine is frozen: none of that time is silence of anybody.
  uint64_t seed = 210;
  for (const Hosts& hosts : all_hosts) {
    for (const bool busy : {false, true}) {
      SCOPED_TRACE(fmt::format("{} busy {}", text(hosts, true, 20000), busy));
      SimPair pair(++seed, {}, {}, {hosts.rails, hosts.rdma, hosts.spare});
      ASSERT_TRUE(pair.connect()) << pair.error();
      pass(pair, seconds(1));
      const Instant begin = pair.world().now();
      bool paused = false;
      const auto pause = [&] {
        paused = true;
        for (sim::Process* host : {&pair.sender(), &pair.receiver()}) {
          pair.world().pause(*host, pair.world().now() + seconds(20));
        }
      };
      if (busy) {
        rig::TransferPlan plan;
        plan.groups = 40;
        plan.seed = seed;
        plan.each_round = [&] {
          if (!paused && pair.world().now() >= begin + std::chrono::microseconds(100)) {
            pause();
          }
        };
        EXPECT_EQ(pair.transfer(plan, seconds(40)), "");
        EXPECT_GE(pair.world().now() - begin, seconds(20)) << "it met no pause";
      } else {
        pause();
        pass(pair, seconds(21));
      }
      EXPECT_TRUE(paused);
      pass(pair, seconds(2));
      EXPECT_EQ(given_up(pair), 0U);
    }
  }
}

TEST(SimLiveness, OneHostThatStandsStillForLongEndsNothing) {
  // Longer than 3 x HA_NCCL_RTO_MS: its paths are given up, and come back within the budget.
  uint64_t seed = 240;
  for (const Hosts& hosts : all_hosts) {
    for (const bool sender : {false, true}) {
      SCOPED_TRACE(text(hosts, sender, 20000));
      SimPair pair(++seed, {}, {}, {hosts.rails, hosts.rdma, hosts.spare});
      ASSERT_TRUE(pair.connect()) << pair.error();
      pass(pair, seconds(1));
      const Instant begin = pair.world().now();
      bool paused = false;
      rig::TransferPlan plan;
      plan.groups = 40;
      plan.seed = seed;
      plan.each_round = [&] {
        if (!paused && pair.world().now() >= begin + std::chrono::microseconds(100)) {
          paused = true;
          pair.world().pause(sender ? pair.sender() : pair.receiver(),
                             pair.world().now() + seconds(20));
        }
      };
      EXPECT_EQ(pair.transfer(plan, seconds(60)), "");
      EXPECT_GE(pair.world().now() - begin, seconds(20)) << "it met no pause";
      pass(pair, seconds(5));
      EXPECT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
      EXPECT_EQ(pair.receive_channel().phase(), Phase::ready) << pair.error();
    }
  }
}

TEST(SimLiveness, AnOutageThatEndsBeforeTheVerdictEndsForTheTransferToo) {
  uint64_t seed = 210;
  for (const int64_t ms : {300, 900, 1500, 2300, 2900}) {
    SCOPED_TRACE(fmt::format("{} ms", ms));
    SimPair pair(++seed, {}, {});
    ASSERT_TRUE(pair.connect()) << pair.error();
    pair.post_receives(4);
    pass(pair, seconds(1));
    ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
    ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
    sim::Link dark;
    dark.cut = true;
    pair.set_links(dark, dark);
    pass(pair, milliseconds(ms));
    EXPECT_EQ(given_up(pair), 0U) << "nothing shows that the peer runs";
    pair.set_links({}, {});
    const Instant healed = pair.world().now();
    const auto received = [&] {
      return pair.receive_channel().slot(0).state.load() == RequestState::done &&
             pair.receive_channel().slot(1).state.load() == RequestState::done;
    };
    ASSERT_FALSE(received()) << "the outage met nothing";
    EXPECT_TRUE(pair.world().run_until(received, seconds(10)));
    EXPECT_LE(pair.world().now() - healed, milliseconds(250));
    EXPECT_EQ(given_up(pair), 0U);
    EXPECT_GT(pair.world().network().counts().cut, 0U) << "the fault did not happen";
  }
}

/// The stream lives on when the queue pair is cut off, and witnesses.
TEST(SimLiveness, ThePathAloneIsGivenUpInTimeIfTheStreamShowsThatThePeerRuns) {
  Config config;
  config.ib_timeout = 20;  // the NIC itself would try for half a minute
  SimPair pair(220, {}, config, {.rails = 1, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  pair.sender().nics[0]->move_gid();
  const Instant cut = pair.world().now();
  ASSERT_TRUE(pair.world().run_until(
      [&] { return pair.send_channel().counters().paths_down.get() == 1; }, seconds(5)));
  EXPECT_LE(pair.world().now() - cut, milliseconds(config.heartbeat_ms + config.rto_ms + 50));
}

/// Only the sender looks, and the NIC would try for half a minute.
TEST(SimLiveness, WhatOnePathAcknowledgesIsNoLifeOfAnotherOne) {
  Config looks;
  looks.ib_timeout = 20;
  Config rests = looks;
  rests.heartbeat_ms = 0;
  sim::World world(221);
  sim::Process& from = **world.add_process({sim::ip(10, 0, 0, 1), sim::ip(10, 1, 0, 1)}, looks, 2);
  sim::Process& to = **world.add_process({sim::ip(10, 0, 0, 2), sim::ip(10, 1, 0, 2)}, rests, 2);
  rig::SimLink link(world, from, to);
  ASSERT_TRUE(link.wait_ready()) << link.error();
  const auto& failovers = link.sender().counters();
  static_cast<void>(world.run_until([] { return false; }, seconds(1)));
  ASSERT_TRUE(link.sender_driver().suspect(0));
  ASSERT_TRUE(world.run_until([&] { return failovers.paths_back.get() == 1; }, seconds(5)));
  ASSERT_EQ(failovers.traffic_moves.get(), 1U);
  static_cast<void>(world.run_until([] { return false; }, milliseconds(100)));
  sim::Link dark;
  dark.cut = true;
  world.network().set_link(from.addresses[0], to.addresses[0], dark);
  world.network().set_link(to.addresses[0], from.addresses[0], dark);
  const Instant cut = world.now();
  rig::TransferPlan plan;
  plan.groups = 300;  // 1.5 s
  plan.bytes_max = 10000;
  plan.released = [&] { return static_cast<uint64_t>((world.now() - cut) / milliseconds(5)) + 1; };
  rig::Traffic traffic(link, plan);
  ASSERT_TRUE(world.run_until([&] { return traffic.step() || failovers.paths_down.get() == 2; },
                              seconds(10)));
  EXPECT_EQ(failovers.paths_down.get(), 2U);
  EXPECT_LE(world.now() - cut, milliseconds(4 * looks.heartbeat_ms + 50));
  EXPECT_GT(traffic.groups_done(), 50U) << "nothing went over the other path";
  EXPECT_TRUE(world.run_until([&] { return traffic.step(); }, seconds(10)));
  EXPECT_EQ(traffic.outcome(), "");
}

}  // namespace
}  // namespace nccl_ha::test
