// The fence by itself: when it closes, when it asks for a destruction, when it gives up.
#include <gtest/gtest.h>

#include <cerrno>

#include "runtime/fabric/verbs/fence.h"

namespace nccl_ha::fabric::verbs {
namespace {

using Outcome = Fence::Outcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

class FenceSteps : public testing::Test {
 protected:
  FenceSteps() {
    clock_.set(Instant(seconds(1)));
    services_.clock = &clock_;
    services_.timers = &timers_;
    services_.lost = &lost_;
    fence_.bind(
        [](void* self) {
          auto& test = *static_cast<FenceSteps*>(self);
          test.checked_ = test.fence_.check(test.returned_);
        },
        this);
  }
  void pass(Duration time) {
    for (const Instant end = clock_.now() + time; clock_.now() < end;) {
      clock_.advance(milliseconds(1));
      timers_.expire(clock_.now());
    }
  }

  /// The process does not run for a while.
  void starve() {
    lost_.on_turn(clock_.now());
    clock_.advance(3 * LostTime::allowance / 2);
    lost_.on_turn(clock_.now());
    timers_.expire(clock_.now());
  }

  ManualClock clock_;
  TimerWheel timers_{Instant(seconds(1))};
  LostTime lost_;
  Options options_;
  PortServices services_;
  uint32_t returned_ = 7;
  Outcome checked_ = Outcome::open;
  Fence fence_{services_, options_};
};

TEST_F(FenceSteps, AQueuePairThatIsNotBrokenHasNone) {
  EXPECT_FALSE(fence_.moves(true));
  EXPECT_EQ(fence_.move(true), Outcome::open);
}

TEST_F(FenceSteps, ClosesOnceAllIsBack) {
  fence_.begin(returned_);
  EXPECT_FALSE(fence_.moves(false));
  ASSERT_TRUE(fence_.moves(true));
  EXPECT_EQ(fence_.move(true), Outcome::returned);
  EXPECT_TRUE(fence_.closed());
  EXPECT_FALSE(fence_.moves(true));
  EXPECT_EQ(timers_.size(), 0U);
}

TEST_F(FenceSteps, WaitsWhileSomethingComesBack) {
  fence_.begin(returned_);
  for (int i = 0; i < 100; ++i) {
    ++returned_;
    pass(options_.flush_wait);
    ASSERT_FALSE(fence_.moves(false)) << i;
  }
  pass(2 * options_.flush_wait);
  EXPECT_TRUE(fence_.moves(false)) << "nothing comes any more";
  EXPECT_EQ(fence_.move(false), Outcome::must_destroy);
}

TEST_F(FenceSteps, WhatComesBackLateSavesTheDestruction) {
  fence_.begin(returned_);
  pass(2 * options_.flush_wait);
  ASSERT_TRUE(fence_.moves(false));
  EXPECT_EQ(fence_.move(true), Outcome::returned);
}

TEST_F(FenceSteps, WaitsLongerWhereTheProcessDoesNotRun) {
  fence_.begin(returned_);
  while (fence_.took() < 16 * options_.flush_wait) {
    starve();
    ASSERT_FALSE(fence_.moves(false)) << "after " << fence_.took().count() << " ns";
  }
  pass(2 * options_.flush_wait);
  ASSERT_TRUE(fence_.moves(false)) << "the process runs again";
  EXPECT_EQ(fence_.move(false), Outcome::must_destroy);
}

TEST_F(FenceSteps, DoesNotWaitForEverWhereTheProcessNeverRuns) {
  fence_.begin(returned_);
  while (fence_.took() < 25 * options_.flush_wait) {
    starve();
  }
  EXPECT_TRUE(fence_.moves(false));
}

TEST_F(FenceSteps, WhatComesBackDuringTheDestructionIsEnough) {
  fence_.begin(returned_);
  pass(2 * options_.flush_wait);
  ASSERT_EQ(fence_.move(false), Outcome::must_destroy);
  EXPECT_EQ(fence_.await(std::make_shared<Destruction>()), Outcome::open);
  EXPECT_FALSE(fence_.moves(false));
  ASSERT_TRUE(fence_.moves(true));
  EXPECT_EQ(fence_.move(true), Outcome::returned);
  EXPECT_TRUE(fence_.closed());
  EXPECT_EQ(timers_.size(), 0U);
}

TEST_F(FenceSteps, NothingIsWaitedForWhereTheQueuePairRefusesToStop) {
  fence_.begin(returned_);
  fence_.stop_waiting();
  EXPECT_EQ(timers_.size(), 0U);
  ASSERT_TRUE(fence_.moves(false));
  EXPECT_EQ(fence_.move(true), Outcome::must_destroy) << "what is back says nothing of the rest";
}

TEST_F(FenceSteps, ClosesWhenTheDestructionIsDone) {
  fence_.begin(returned_);
  fence_.stop_waiting();
  ASSERT_EQ(fence_.move(false), Outcome::must_destroy);
  const auto destruction = std::make_shared<Destruction>();
  EXPECT_EQ(fence_.await(destruction), Outcome::open);
  pass(seconds(1));
  EXPECT_FALSE(fence_.moves(true)) << "what comes back proves nothing";
  destruction->result = 0;
  ASSERT_TRUE(fence_.moves(false));
  EXPECT_EQ(fence_.move(false), Outcome::destroyed);
  EXPECT_TRUE(fence_.closed());
}

TEST_F(FenceSteps, FailsWithTheDestruction) {
  fence_.begin(returned_);
  fence_.stop_waiting();
  ASSERT_EQ(fence_.move(false), Outcome::must_destroy);
  const auto destruction = std::make_shared<Destruction>();
  destruction->result = EBUSY;
  EXPECT_EQ(fence_.await(destruction), Outcome::open);
  ASSERT_TRUE(fence_.moves(false));
  EXPECT_EQ(fence_.move(false), Outcome::failed);
  EXPECT_EQ(fence_.error(), EBUSY);
  EXPECT_TRUE(fence_.failed());
  EXPECT_FALSE(fence_.closed());
}

TEST_F(FenceSteps, ADestructionThatHangsIsGivenUpInTime) {
  fence_.begin(returned_);
  fence_.stop_waiting();
  ASSERT_EQ(fence_.move(false), Outcome::must_destroy);
  const auto destruction = std::make_shared<Destruction>();
  EXPECT_EQ(fence_.await(destruction), Outcome::open);
  pass(options_.destroy_limit - milliseconds(10));
  EXPECT_EQ(checked_, Outcome::open);
  pass(milliseconds(20));
  EXPECT_EQ(checked_, Outcome::failed);
  EXPECT_EQ(fence_.error(), ETIMEDOUT);
  destruction->result = 0;
  EXPECT_FALSE(fence_.moves(true)) << "it was told";
}

TEST_F(FenceSteps, TellsHowLongItTook) {
  pass(milliseconds(5));
  fence_.begin(returned_);
  pass(milliseconds(3));
  EXPECT_EQ(fence_.took(), milliseconds(3));
  EXPECT_EQ(fence_.lost(), Duration(0));
}

}  // namespace
}  // namespace nccl_ha::fabric::verbs
