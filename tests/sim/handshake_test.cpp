// Handshakes on virtual time in which a side stands still, or the paths do not come up: until the
// caller's time is up only proof of death ends one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "actors/connection.h"
#include "tools/sim/pair.h"

namespace nccl_ha::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using tools::SimCables;
using tools::SimPair;
using tools::TransferPlan;

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// Only one rail: nothing else can take the place of the first path.
TEST(SimHandshake, ASideThatStandsStillAnywhereInItCostsOnlyTime) {
  size_t before_the_end = 0;
  for (const bool rdma : {false, true}) {
    const SimCables cables{.rails = 1, .rdma = rdma};
    SimPair undisturbed(41, {}, {}, cables);
    ASSERT_TRUE(undisturbed.connect()) << undisturbed.error();
    const Duration takes = undisturbed.world().now() - Instant(seconds(1));
    constexpr int points = 30;
    // The longest is longer than a listener waits for a hello.
    for (const bool sender : {false, true}) {
      for (const Duration pause : {milliseconds(1500), milliseconds(5000), milliseconds(8000)}) {
        for (int point = 1; point <= points; ++point) {  // from when somebody listens
          SCOPED_TRACE(fmt::format("rdma {} the {} stands still for {} ms at point {}", rdma,
                                   sender ? "sender" : "receiver", pause.count() / 1'000'000,
                                   point));
          SimPair pair(41, {}, {}, cables);
          const Instant at = pair.world().now() + takes * point / points;
          bool paused = false;
          ASSERT_TRUE(pair.connect([&] {
            if (!paused && pair.world().now() >= at) {
              paused = true;
              pair.world().pause(sender ? pair.sender() : pair.receiver(),
                                 pair.world().now() + pause);
            }
          })) << pair.error();
          before_the_end += paused ? 1 : 0;
          TransferPlan plan;
          plan.groups = 10;
          EXPECT_EQ(pair.transfer(plan, seconds(30)), "");
        }
      }
    }
  }
  EXPECT_GT(before_the_end, 200U) << "nobody stood still";
}

TEST(SimHandshake, BothSidesStandStillInTurn) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    SimPair pair(4200 + seed, {}, {}, {.rails = 1, .rdma = seed % 2 == 0});
    Random random(seed);
    Instant next = pair.world().now() + microseconds(random.below(100));
    int pauses = 0;
    ASSERT_TRUE(pair.connect([&] {
      if (pauses < 4 && pair.world().now() >= next) {
        ++pauses;
        const Duration pause = milliseconds(1 + random.below(3000));
        pair.world().pause(random.chance(0.5) ? pair.sender() : pair.receiver(),
                           pair.world().now() + pause);
        next = pair.world().now() + milliseconds(random.below(1500));
      }
    })) << pair.error();
    EXPECT_GT(pauses, 0);
    TransferPlan plan;
    plan.groups = 10;
    EXPECT_EQ(pair.transfer(plan, seconds(30)), "");
  }
}

TEST(SimHandshake, WherePacketsAreBlockedBothSidesSaySoWhenTheTimeIsUp) {
  Config config;
  config.connect_timeout_ms = 10000;
  sim::Link blocked;
  blocked.drop = 1;
  SimPair pair(43, blocked, config);
  EXPECT_FALSE(pair.connect());
  const std::string at_sender = pair.error();
  EXPECT_NE(at_sender.find("HA_NCCL_CONNECT_TIMEOUT_MS"), std::string::npos) << at_sender;
  EXPECT_NE(at_sender.find("no path came up"), std::string::npos) << at_sender;
  EXPECT_NE(at_sender.find("datagram"), std::string::npos) << at_sender;
  const Duration took = pair.world().now() - Instant(seconds(1));
  EXPECT_GE(took, seconds(10));
  EXPECT_LT(took, milliseconds(10500));
  ASSERT_TRUE(pair.world().run_until([&] { return pair.link().listener().failed(); }, seconds(1)));
  const std::string at_receiver = pair.link().listener().failure().what;
  EXPECT_NE(at_receiver.find("no path came up"), std::string::npos) << at_receiver;
  EXPECT_NE(at_receiver.find("datagram"), std::string::npos) << at_receiver;
  for (const std::string& text : {at_sender, at_receiver}) {
    EXPECT_LE(occurrences(text, "the peer reports"), 1U) << text;
  }
}

TEST(SimHandshake, WhatBlocksPacketsForAWhileCostsOnlyTime) {
  sim::Link blocked;
  blocked.drop = 1;
  SimPair pair(44, blocked);
  bool open = false;
  const Instant until = pair.world().now() + seconds(12);
  ASSERT_TRUE(pair.connect([&] {
    if (!open && pair.world().now() >= until) {
      open = true;
      pair.world().network().all = {};
    }
  })) << pair.error();
  EXPECT_TRUE(open);
  TransferPlan plan;
  plan.groups = 10;
  EXPECT_EQ(pair.transfer(plan, seconds(30)), "");
}

TEST(SimHandshake, APeerThatIsKilledInItEndsIt) {
  SimPair undisturbed(45, {});
  ASSERT_TRUE(undisturbed.connect()) << undisturbed.error();
  const Duration takes = undisturbed.world().now() - Instant(seconds(1));
  for (const bool sender : {false, true}) {
    for (int point = 1; point < 30; ++point) {
      SCOPED_TRACE(fmt::format("the {} dies at point {}", sender ? "sender" : "receiver", point));
      SimPair pair(45, {});
      const Instant at = pair.world().now() + takes * point / 30;
      tools::SimLink link(pair.world(), pair.sender(), pair.receiver(), 5000);
      ASSERT_FALSE(pair.world().run_until([] { return false; }, at - pair.world().now()));
      pair.world().kill_process(sender ? pair.sender() : pair.receiver());
      if (sender) {
        continue;  // nobody waits for anything: no crash is all that is asked for
      }
      ASSERT_TRUE(pair.world().run_until([&] { return link.sender().phase() == Phase::failed; },
                                         seconds(2)));
    }
  }
}

}  // namespace
}  // namespace nccl_ha::test
