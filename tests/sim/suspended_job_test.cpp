// A whole job that is suspended for longer than it waits for anything, as schedulers do it.
#include <gtest/gtest.h>

#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha::test {
namespace {

using rig::SimCables;
using rig::SimPair;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

void suspend(SimPair& pair, Instant until) {
  pair.world().pause(pair.sender(), until);
  pair.world().pause(pair.receiver(), until);
}

class SuspendedJob : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Fabrics, SuspendedJob, testing::Bool(), [](const auto& one) {
  return std::string(one.param ? "rdma" : "datagrams");
});

TEST_P(SuspendedJob, WithoutAPathGoesOnWhenBothAreBack) {
  constexpr Duration back = seconds(21);
  Config config;
  config.retry_budget_ms = 5000;
  SimPair pair(71, {}, config, {.rails = 1, .rdma = GetParam()});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  const Instant begin = pair.world().now();
  bool suspended = false;
  rig::TransferPlan plan;
  plan.groups = 40;
  plan.each_round = [&] {
    const Duration since = pair.world().now() - begin;
    sim::Link link;
    link.cut = since > microseconds(100) && since < back - seconds(1);
    pair.set_links(link, link, 0);
    if (!suspended && since > milliseconds(4500)) {
      suspended = true;
      suspend(pair, begin + back);
    }
  };
  EXPECT_EQ(pair.transfer(plan, seconds(60)), "");
  EXPECT_TRUE(suspended);
  EXPECT_GE(pair.world().now() - begin, back) << "it missed no path";
  EXPECT_GT(pair.send_channel().counters().paths_down.get(), 0U);
}

TEST_P(SuspendedJob, WhileItConnectsGoesOnWhenBothAreBack) {
  constexpr Duration pause = seconds(60);
  const SimCables cables{.rails = 1, .rdma = GetParam()};
  SimPair undisturbed(72, {}, {}, cables);
  ASSERT_TRUE(undisturbed.connect()) << undisturbed.error();
  const Duration takes = undisturbed.world().now() - Instant(seconds(1));
  const auto points = static_cast<int>(sim_alike(30));
  int suspended = 0;
  for (int point = 1; point <= points; ++point) {
    SCOPED_TRACE(point);
    SimPair pair(72, {}, {}, cables);
    ASSERT_GT(pause, milliseconds(pair.sender().config.connect_timeout_ms));
    const Instant at = pair.world().now() + takes * point / points;
    bool done = false;
    ASSERT_TRUE(pair.connect([&] {
      if (!done && pair.world().now() >= at) {
        done = true;
        suspend(pair, pair.world().now() + pause);
      }
    })) << pair.error();
    suspended += done ? 1 : 0;
    rig::TransferPlan plan;
    plan.groups = 10;
    EXPECT_EQ(pair.transfer(plan, seconds(90)), "");
  }
  EXPECT_GT(suspended, points / 2);
}

}  // namespace
}  // namespace nccl_ha::test
