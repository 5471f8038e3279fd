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
  EXPECT_TRUE(failover().is_of_ours(std::optional(PathNotice{1, 0, false, false, ""})));
  EXPECT_FALSE(failover().is_of_ours(std::optional(PathNotice{2, 0, false, false, ""})));
  EXPECT_FALSE(failover().is_of_ours(std::optional<PathNotice>()));
  EXPECT_EQ(bench_->failures.size(), 2U);
}

TEST_F(FailoverTest, ARejectedLaneSaysSoToThePeer) {
  EXPECT_NE(failover().reject(1, fail(Errc::system, "no memory")).message().find("no memory"),
            std::string::npos);
  EXPECT_TRUE(failover().notice_of(1, failover().rejection()).rejected);
  EXPECT_FALSE(failover().notice_of(0, failover().rejection()).rejected);
}

/// Two lanes, each over an interface of its own.
class LinksOfAConnection : public ConnectionBench {
 protected:
  LinksOfAConnection() : ConnectionBench(2, {sim::ip(10, 0, 0, 1), sim::ip(10, 0, 1, 1)}) {}
  void SetUp() override {
    ConnectionBench::SetUp();
    act([&] { bench_->liveness.watch_links(); });
    for (size_t i = 0; i < 2; ++i) {
      Lane& lane = bench_->paths.lane(i);
      lane.local = sim::Endpoint{sim::ip(10, 0, static_cast<uint8_t>(i), 1), 0}.to_sockaddr();
      nics_[i] = bench_->paths.interface_of(lane);
      ASSERT_FALSE(nics_[i].empty());
    }
    ASSERT_NE(nics_[0], nics_[1]);
  }
  void tell(fabric::NicNotice::Kind kind, const std::string& nic) {
    bench_->state.provider.nics().post({kind, {{fabric::FailureDomain::Kind::local_nic, nic}}, ""});
    pass(milliseconds(1));
  }
  std::string nics_[2];
};

TEST_F(LinksOfAConnection, AreNamedBeforeAnythingElseIsBlamed) {
  using Kind = fabric::NicNotice::Kind;
  const std::string guess = "check that UDP is not filtered";
  const auto said = [&] { return bench_->liveness.after_links(guess); };
  const std::string remedy = " no link: check cables and switch ports";
  EXPECT_EQ(said(), guess);
  tell(Kind::down, "eth9");
  EXPECT_EQ(said(), guess) << "it is none of this connection";
  tell(Kind::down, nics_[1]);
  EXPECT_EQ(said(), nics_[1] + " of this host has" + remedy + "; " + guess);
  tell(Kind::down, nics_[0]);
  EXPECT_EQ(said(), nics_[0] + " and " + nics_[1] + " of this host have" + remedy);
  tell(Kind::up, nics_[1]);
  EXPECT_EQ(said(), nics_[0] + " of this host has" + remedy + "; " + guess);
}

/// Nothing is heard of its link any more, and nothing is kept of it.
TEST_F(LinksOfAConnection, AreNamedWhereTheirNicIsGone) {
  const auto said = [&] { return bench_->liveness.after_links("no answer"); };
  world_.network().tell_gone(sim::ip(10, 0, 0, 1), nics_[1]);
  pass(milliseconds(20));
  EXPECT_EQ(said(), "no answer") << "it may have another name";
  auto list = *bench_->state.provider.interfaces();
  std::erase_if(list, [&](const fabric::NetInterface& one) { return one.name == nics_[1]; });
  ASSERT_EQ(list.size(), 1U);
  bench_->state.provider.renew_interfaces(list);
  EXPECT_EQ(said(),
            nics_[1] + " of this host has no link: check cables and switch ports; no answer");
}

TEST_F(LinksOfAConnection, EndItWithTheirNames) {
  act([&] { bench_->failover.take_down(0, fail(Errc::remote, "check that UDP is not filtered")); });
  tell(fabric::NicNotice::Kind::down, nics_[0]);
  tell(fabric::NicNotice::Kind::down, nics_[1]);
  act([&] { bench_->failover.watch_budget(true); });
  pass(milliseconds(Config{}.retry_budget_ms + 1));
  ASSERT_EQ(bench_->failures.size(), 1U);
  const std::string& failure = bench_->failures.front();
  EXPECT_NE(failure.find("HA_NCCL_RETRY_BUDGET_MS"), std::string::npos) << failure;
  EXPECT_NE(failure.find("have no link"), std::string::npos) << failure;
  EXPECT_EQ(failure.find("UDP"), std::string::npos) << failure;
}

}  // namespace
}  // namespace nccl_ha
