#include <gtest/gtest.h>

#include "actors/connection/failover.h"
#include "tests/support/connection_bench.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;

class FailoverTest : public ConnectionBench {
 protected:
  FailoverTest() : ConnectionBench(2) {}
  void SetUp() override {
    ConnectionBench::SetUp();
    pass(milliseconds(1));
  }
  Failover& failover() { return bench_->failover; }
};

TEST_F(FailoverTest, AnOutageIsCountedFromDownToBack) {
  act([&] { failover().take_down(0, fail(Errc::remote, "cut")); });
  EXPECT_FALSE(bench_->paths.lane(0).usable);
  EXPECT_EQ(bench_->path(0).state(), fabric::PathState::error);
  EXPECT_EQ(bench_->state.counters->paths_down.get(), 1U);
  EXPECT_NE(failover().need().find("cut"), std::string::npos);
  pass(milliseconds(7));
  BenchActor::renew_path(bench_->paths.lane(0));
  act([&] {
    failover().take_into_use(0);
    failover().log_back(0);
  });
  EXPECT_TRUE(bench_->paths.lane(0).usable);
  EXPECT_EQ(bench_->state.counters->paths_back.get(), 1U);
  EXPECT_GE(bench_->state.counters->longest_stall_ns.get(), 7'000'000U);
}

TEST_F(FailoverTest, ALaneIsDrainedWhenItsPathTakesNothingAndNothingIsOpen) {
  Lane& lane = bench_->paths.lane(0);
  lane.writes_open = 1;
  failover().take_down(0, fail(Errc::remote, "cut"));
  EXPECT_FALSE(failover().drained(0));
  lane.writes_open = 0;
  EXPECT_TRUE(failover().drained(0));
  EXPECT_FALSE(failover().drained(1)) << "its path works";
}

TEST_F(FailoverTest, WithoutAPathForTooLongTheConnectionFails) {
  act([&] { failover().watch_budget(true); });
  pass(milliseconds(Config{}.retry_budget_ms - 1));
  EXPECT_TRUE(bench_->failures.empty());
  pass(milliseconds(2));
  ASSERT_EQ(bench_->failures.size(), 1U);
  EXPECT_NE(bench_->failures.front().find("HA_NCCL_RETRY_BUDGET_MS"), std::string::npos);
}

TEST_F(FailoverTest, APathInTimeEndsTheCountdown) {
  act([&] { failover().watch_budget(true); });
  pass(milliseconds(Config{}.retry_budget_ms / 2));
  act([&] { failover().watch_budget(false); });
  pass(milliseconds(Config{}.retry_budget_ms));
  EXPECT_TRUE(bench_->failures.empty());
}

TEST_F(FailoverTest, WhatThePeerSaysOfAPathThatIsNotThereEndsTheConnection) {
  EXPECT_TRUE(failover().is_of_ours(std::optional(PathNotice{1, 0, false, ""})));
  EXPECT_FALSE(failover().is_of_ours(std::optional(PathNotice{2, 0, false, ""})));
  EXPECT_FALSE(failover().is_of_ours(std::optional<PathNotice>()));
  EXPECT_EQ(bench_->failures.size(), 2U);
}

TEST_F(FailoverTest, ARejectedLaneSaysSoToThePeer) {
  EXPECT_NE(failover().reject(1, fail(Errc::system, "no memory")).message().find("no memory"),
            std::string::npos);
  EXPECT_TRUE(failover().notice_of(1, failover().rejection()).rejected);
  EXPECT_FALSE(failover().notice_of(0, failover().rejection()).rejected);
}

}  // namespace
}  // namespace nccl_ha
