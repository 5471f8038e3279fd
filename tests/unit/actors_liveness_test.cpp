// Heartbeats and silence, on virtual time, over paths that answer nothing.
#include <gtest/gtest.h>

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
  bench_->control.send(encode(ControlType::down, PathNotice{0, 1, false, "why"}));
  ASSERT_TRUE(world_.run_until([&] { return bench_->lanes_failed.size() == 2; }, seconds(60)));
  BenchActor::renew_path(bench_->paths.lane(0));
  bench_->failover.take_into_use(0);
  ASSERT_EQ(posts(0), 1U) << "the message goes once more, and is open";
  const Instant begin = world_.now();
  ASSERT_TRUE(world_.run_until([&] { return bench_->lanes_failed.size() == 3; }, seconds(60)));
  EXPECT_GE(world_.now() - begin, milliseconds(Config{}.rto_ms));
}

}  // namespace
}  // namespace nccl_ha
