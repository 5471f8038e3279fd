// Heartbeats and silence, on virtual time, over paths that answer nothing.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>

#include "actors/connection/liveness.h"
#include "tests/support/connection_bench.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LivenessTest : public ConnectionBench {
 protected:
  LivenessTest() : ConnectionBench(2) {}
  void SetUp() override {
    ConnectionBench::SetUp();
    for (Lane& lane : bench_->paths.lanes()) {
      bench_->failover.take_into_use(static_cast<size_t>(&lane - &bench_->paths.lane(0)));
    }
    bench_->liveness.start();
  }
  size_t posts(size_t lane) { return bench_->path(lane).posts.size(); }
};

TEST_F(LivenessTest, EachPathIsGivenAHeartbeatAndNoSecondOneBeforeTheAnswer) {
  pass(milliseconds(3 * Config{}.heartbeat_ms / 2));
  EXPECT_EQ(posts(0), 1U);
  EXPECT_EQ(posts(1), 1U);
  EXPECT_TRUE(ControlMark::marks(bench_->path().posts.front().immediate));
  bench_->liveness.probe_usable();
  EXPECT_EQ(posts(0), 1U) << "one is under way";
}

TEST_F(LivenessTest, AnAnsweredPathIsKeptAndASilentOneGivenUp) {
  const auto answer = [&] {
    if (posts(0) != 0 && bench_->paths.lane(0).control.heartbeats_open != 0) {
      static_cast<void>(bench_->control.boxes().on_completion(
          completion_of(0, bench_->path(0).posts.back()), bench_->paths.lane(0)));
    }
    return !bench_->lanes_failed.empty();
  };
  ASSERT_TRUE(world_.run_until(answer, seconds(60)));
  EXPECT_EQ(bench_->lanes_failed, (std::vector<size_t>{1}));
  EXPECT_TRUE(bench_->paths.lane(0).usable);
}

TEST_F(LivenessTest, ANewPathIsNotJudgedByTheSilenceOfTheOldOne) {
  bench_->control.send(encode(ControlType::down, PathNotice{0, 1, false, false, "why"}));
  ASSERT_TRUE(world_.run_until([&] { return bench_->lanes_failed.size() == 2; }, seconds(60)));
  BenchActor::renew_path(bench_->paths.lane(0));
  bench_->failover.take_into_use(0);
  ASSERT_EQ(posts(0), 1U) << "the message goes once more, and is open";
  const Instant begin = world_.now();
  ASSERT_TRUE(world_.run_until([&] { return bench_->lanes_failed.size() == 3; }, seconds(60)));
  EXPECT_GE(world_.now() - begin, milliseconds(Config{}.rto_ms));
}

TEST_F(LivenessTest, NoPathIsLeftEarlyForOneThatFlaps) {
  Lane& standby = bench_->paths.lane(1);
  ASSERT_TRUE(bench_->paths.other_steady(0));
  bench_->failover.take_down(1, fail(Errc::remote, "cut"));
  BenchActor::renew_path(standby);
  bench_->failover.take_into_use(1);
  EXPECT_TRUE(bench_->paths.other_usable(0));
  for (int answers = 0; answers < 3; ++answers) {
    EXPECT_FALSE(bench_->paths.other_steady(0)) << answers;
    ASSERT_TRUE(world_.run_until([&] { return standby.control.heartbeats_open != 0; }, seconds(1)));
    static_cast<void>(bench_->control.boxes().on_completion(
        completion_of(1, bench_->path(1).posts.back()), standby));
  }
  EXPECT_TRUE(bench_->paths.other_steady(0));
}

/// A connection of the same worker that does nothing.
class Bystander final : public NicMonitor::Member {
 public:
  void on_domain_down(const fabric::FailureDomain&) override { ++downs; }
  void on_domain_up(const fabric::FailureDomain&) override {}
  void on_suspicion(const fabric::FailureDomains&, const std::string&) override {}
  unsigned downs = 0;
};

TEST_F(LivenessTest, AnIdleOneAmongManySpeaksSeldomUntilItIsSuspected) {
  std::array<Bystander, 512> others;
  std::shared_ptr<NicMonitor> monitor;
  act([&] {
    monitor = NicMonitor::of(*bench_->state.context, bench_->state.provider.nics());
    for (Bystander& other : others) {
      monitor->enter(&other);
    }
  });
  size_t given = 0;
  const auto answered = [&] {
    if (bench_->paths.lane(0).control.heartbeats_open != 0) {
      ++given;
      for (size_t lane = 0; lane < 2; ++lane) {
        static_cast<void>(bench_->control.boxes().on_completion(
            completion_of(lane, bench_->path(lane).posts.back()), bench_->paths.lane(lane)));
      }
    }
    return false;
  };
  static_cast<void>(world_.run_until(answered, seconds(20)));
  EXPECT_GE(given, 9U);
  EXPECT_LE(given, 12U) << "one in two seconds, and the first one";
  const size_t before = posts(0);
  bench_->state.peer_host = "node2";
  bench_->path(0).domains = {{fabric::FailureDomain::Kind::local_nic, "own0"}};
  bench_->state.provider.nics().post(
      {fabric::NicNotice::Kind::suspect, bench_->path(0).domains, "node2"});
  pass(milliseconds(1));
  EXPECT_EQ(posts(0), before + 1) << "asked at once";
  act([&] {
    for (Bystander& other : others) {
      monitor->unsubscribe(&other);
    }
    monitor.reset();
  });
}

/// Each container that begins or ends on a host is heard of, for as long as a job runs.
TEST_F(LivenessTest, OfInterfacesThatWentAwayNothingIsKept) {
  constexpr sim::Ip host = sim::ip(10, 0, 0, 1);
  constexpr unsigned containers = 200;
  Bystander told;
  std::shared_ptr<NicMonitor> monitor;
  act([&] {
    monitor = NicMonitor::of(*bench_->state.context, bench_->state.provider.nics());
    monitor->enter(&told);
  });
  world_.network().tell_link(host, "eth0", false);
  pass(milliseconds(20));
  ASSERT_FALSE(monitor->has_link("eth0"));
  const size_t names = monitor->names();
  for (unsigned i = 0; i < containers; ++i) {
    const std::string cable = "veth" + std::to_string(i);
    world_.network().tell_link(host, cable, true);
    world_.network().tell_gone(host, cable);
  }
  pass(milliseconds(20));
  EXPECT_EQ(told.downs, containers + 1) << "they did not go";
  EXPECT_EQ(monitor->names(), names);
  EXPECT_FALSE(monitor->has_link("eth0")) << "it is there";
  act([&] {
    monitor->unsubscribe(&told);
    monitor.reset();
  });
}

using fabric::FailureDomain;
using Kind = FailureDomain::Kind;

/// What other connections of the process find out.
class DomainsTest : public LivenessTest {
 protected:
  void SetUp() override {
    LivenessTest::SetUp();
    bench_->state.peer_host = "node2";
    bench_->path(0).domains = {{Kind::local_nic, "own0"}, {Kind::host, "relay"}};
    bench_->path(1).domains = {{Kind::local_nic, "own1"}, {Kind::remote_nic, "10.0.0.2"}};
  }
  void tell(fabric::NicNotice::Kind kind, const FailureDomain& domain, const std::string& peer) {
    bench_->state.provider.nics().post({kind, {{Kind::host, "nobody's"}, domain}, peer});
    pass(milliseconds(1));
  }
  std::vector<size_t> asked() const {
    std::vector<size_t> lanes;
    for (size_t i = 0; i < 2; ++i) {
      if (bench_->paths.lane(i).health.suspected()) {
        lanes.push_back(i);
      }
    }
    return lanes;
  }
};

TEST_F(DomainsTest, ASuspicionReachesThePathsThatShareSomethingWithTheSilentOne) {
  const auto suspect = fabric::NicNotice::Kind::suspect;
  tell(suspect, {Kind::local_nic, "other"}, "node2");
  tell(suspect, {Kind::local_nic, "own0"}, "node3");
  EXPECT_EQ(asked(), std::vector<size_t>{}) << "a NIC's way to another host says nothing";
  tell(suspect, {Kind::local_nic, "own0"}, "node2");
  EXPECT_EQ(asked(), std::vector<size_t>{0});
  tell(suspect, {Kind::remote_nic, "10.0.0.2"}, "node2");
  EXPECT_EQ(asked(), (std::vector<size_t>{0, 1}));
}

TEST_F(DomainsTest, AHostInBetweenIsSuspiciousWhomeverItLedTo) {
  tell(fabric::NicNotice::Kind::suspect, {Kind::host, "relay"}, "node3");
  EXPECT_EQ(asked(), std::vector<size_t>{0});
}

TEST_F(DomainsTest, WhatIsDownTakesItsPathsDownWhileThereIsAnother) {
  tell(fabric::NicNotice::Kind::down, {Kind::host, "relay"}, "");
  EXPECT_EQ(bench_->lanes_failed, std::vector<size_t>{0});
  tell(fabric::NicNotice::Kind::down, {Kind::remote_nic, "10.0.0.2"}, "");
  EXPECT_EQ(bench_->lanes_failed, std::vector<size_t>{0}) << "the last one waits";
}

}  // namespace
}  // namespace nccl_ha
