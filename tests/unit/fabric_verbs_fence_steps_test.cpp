// The fence by itself: what proves that nothing moves, when it asks, when it has the queue pair
// destroyed, when it says that it is stuck.
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
  DeviceHealth device_;
  std::shared_ptr<Answer> stop_ = [] {
    auto done = std::make_shared<Answer>();
    done->result = 0;
    return done;
  }();
  Fence fence_{services_, options_, device_};

  /// Everything is back; the firmware is asked, and answers with that (0: it lives).
  void ask(int answer = 0) {
    ASSERT_TRUE(fence_.moves(true));
    ASSERT_EQ(fence_.move(true), Outcome::must_ask);
    const auto question = std::make_shared<Answer>();
    fence_.confirm(question);
    EXPECT_EQ(fence_.moves(true), false) << "there is no answer yet";
    question->result = answer;
    ASSERT_TRUE(fence_.moves(true));
  }
  std::shared_ptr<Answer> destroy() {
    EXPECT_EQ(fence_.move(false), Outcome::must_destroy);
    auto destruction = std::make_shared<Answer>();
    fence_.await(destruction);
    EXPECT_FALSE(fence_.moves(false));
    return destruction;
  }
};

TEST(FenceProofs, WhatADeviceInOrderSaysCounts) {
  FenceEvidence known;
  EXPECT_EQ(proof_of(known), FenceProof::none);
  known.stopped = true;
  known.all_returned = true;
  EXPECT_EQ(proof_of(known), FenceProof::none) << "perhaps the driver made that up";
  known.return_confirmed = true;
  EXPECT_EQ(proof_of(known), FenceProof::returned);
  known.stopped = false;
  EXPECT_EQ(proof_of(known), FenceProof::none);
  known.destruction_confirmed = true;
  EXPECT_EQ(proof_of(known), FenceProof::destroyed);
  known.device = DeviceHealth::Level::failed;
  EXPECT_EQ(proof_of(known), FenceProof::destroyed) << "a queue is lost, and the firmware lives";
}

TEST(FenceProofs, WhatADeviceWasNeverGivenNeedsNone) {
  FenceEvidence known;
  known.given = false;
  known.device = DeviceHealth::Level::lost;
  EXPECT_EQ(proof_of(known), FenceProof::returned);
}

TEST(FenceProofs, SilenceIsNoneAndCountsWhereNothingElseDoes) {
  FenceEvidence known;
  known.silent = true;
  EXPECT_EQ(proof_of(known), FenceProof::silence);
  known.destruction_confirmed = true;
  EXPECT_EQ(proof_of(known), FenceProof::destroyed);
}

TEST(FenceProofs, OfALostDeviceTheKernelHasTheWord) {
  FenceEvidence known{true, true, true, true, true, true, DeviceHealth::Level::lost};
  EXPECT_EQ(proof_of(known), FenceProof::none);
  known = {};
  known.device = DeviceHealth::Level::gone;
  EXPECT_EQ(proof_of(known), FenceProof::gone);
}

TEST(FenceProofs, ADeviceOnlyGetsWorse) {
  DeviceHealth device;
  EXPECT_TRUE(device.usable());
  EXPECT_TRUE(device.worsen(DeviceHealth::Level::lost));
  EXPECT_FALSE(device.worsen(DeviceHealth::Level::lost));
  EXPECT_FALSE(device.worsen(DeviceHealth::Level::failed));
  EXPECT_EQ(device.level(), DeviceHealth::Level::lost);
  EXPECT_TRUE(device.worsen(DeviceHealth::Level::gone));
}

TEST_F(FenceSteps, AQueuePairThatIsNotBrokenHasNone) {
  EXPECT_FALSE(fence_.moves(true));
  EXPECT_EQ(fence_.move(true), Outcome::open);
}

TEST_F(FenceSteps, ClosesOnceAllIsBack) {
  fence_.begin(returned_, stop_);
  EXPECT_FALSE(fence_.moves(false));
  ask();
  EXPECT_EQ(fence_.move(true), Outcome::closed);
  EXPECT_TRUE(fence_.closed());
  EXPECT_EQ(fence_.proof(), FenceProof::returned);
  EXPECT_FALSE(fence_.moves(true));
  EXPECT_EQ(timers_.size(), 0U);
}

TEST_F(FenceSteps, WaitsWhileSomethingComesBack) {
  fence_.begin(returned_, stop_);
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
  fence_.begin(returned_, stop_);
  pass(2 * options_.flush_wait);
  ASSERT_TRUE(fence_.moves(false));
  ask();
  EXPECT_EQ(fence_.move(true), Outcome::closed);
}

TEST_F(FenceSteps, WaitsLongerWhereTheProcessDoesNotRun) {
  fence_.begin(returned_, stop_);
  while (fence_.took() < 16 * options_.flush_wait) {
    starve();
    ASSERT_FALSE(fence_.moves(false)) << "after " << fence_.took().count() << " ns";
  }
  pass(2 * options_.flush_wait);
  ASSERT_TRUE(fence_.moves(false)) << "the process runs again";
  EXPECT_EQ(fence_.move(false), Outcome::must_destroy);
}

TEST_F(FenceSteps, DoesNotWaitForEverWhereTheProcessNeverRuns) {
  fence_.begin(returned_, stop_);
  while (fence_.took() < 25 * options_.flush_wait) {
    starve();
  }
  EXPECT_TRUE(fence_.moves(false));
}

TEST_F(FenceSteps, WhatComesBackDuringTheDestructionIsEnough) {
  fence_.begin(returned_, stop_);
  pass(2 * options_.flush_wait);
  const auto destruction = destroy();
  ask();
  EXPECT_EQ(fence_.move(true), Outcome::closed);
  EXPECT_EQ(fence_.proof(), FenceProof::returned);
  EXPECT_EQ(timers_.size(), 0U);
}

// A driver whose firmware has failed may make up what comes back.
TEST_F(FenceSteps, WithoutAnAnswerWhatCameBackIsNoProof) {
  fence_.begin(returned_, stop_);
  ask(EIO);
  const auto destruction = destroy();
  destruction->result = EIO;
  EXPECT_FALSE(fence_.moves(true));
  pass(seconds(20));
  EXPECT_FALSE(fence_.closed());
  device_.worsen(DeviceHealth::Level::gone);
  ASSERT_TRUE(fence_.moves(true));
  EXPECT_EQ(fence_.move(true), Outcome::closed);
  EXPECT_EQ(fence_.proof(), FenceProof::gone);
}

TEST_F(FenceSteps, AShortageIsNoAnswerAndTheFirmwareIsAskedAgainSoon) {
  fence_.begin(returned_, stop_);
  ask(ENOMEM);
  destroy()->result = EAGAIN;
  pass(milliseconds(15));
  EXPECT_FALSE(fence_.moves(true)) << "at a pace";
  pass(milliseconds(10));
  ASSERT_TRUE(fence_.moves(true));
  destroy()->result = 0;
  EXPECT_EQ(fence_.move(false), Outcome::closed);
  EXPECT_EQ(fence_.proof(), FenceProof::destroyed);
}

TEST_F(FenceSteps, AShortageThatLastsIsTold) {
  fence_.begin(returned_, stop_);
  ask(ENOMEM);
  const Instant begun = clock_.now();
  int asked = 0;
  while (checked_ != Outcome::stuck && clock_.now() - begun < 2 * options_.stuck_after) {
    if (fence_.moves(false)) {
      destroy()->result = ENOMEM;
      ++asked;
    }
    pass(milliseconds(1));
  }
  EXPECT_EQ(checked_, Outcome::stuck);
  EXPECT_LE(clock_.now() - begun, options_.stuck_after + milliseconds(30));
  EXPECT_EQ(fence_.error(), ENOMEM);
  EXPECT_GT(asked, 150);
  EXPECT_LE(asked, 251) << "one in 20 ms";
}

TEST_F(FenceSteps, NothingIsWaitedForWhereTheQueuePairRefusesToStop) {
  stop_->result = EIO;
  fence_.begin(returned_, stop_);
  ASSERT_TRUE(fence_.moves(false));
  EXPECT_EQ(fence_.move(true), Outcome::must_destroy) << "what is back says nothing of the rest";
}

TEST_F(FenceSteps, ClosesWhenTheDestructionIsDone) {
  stop_->result = EIO;
  fence_.begin(returned_, stop_);
  const auto destruction = destroy();
  pass(seconds(1));
  EXPECT_FALSE(fence_.moves(true)) << "what comes back proves nothing";
  destruction->result = 0;
  ASSERT_TRUE(fence_.moves(false));
  EXPECT_EQ(fence_.move(false), Outcome::closed);
  EXPECT_EQ(fence_.proof(), FenceProof::destroyed);
  EXPECT_EQ(timers_.size(), 0U);
}

TEST_F(FenceSteps, ADestructionThatIsRefusedIsToldAndTheKernelIsWaitedFor) {
  stop_->result = EIO;
  fence_.begin(returned_, stop_);
  destroy()->result = EBUSY;
  pass(options_.stuck_after - milliseconds(10));
  EXPECT_EQ(checked_, Outcome::open);
  pass(milliseconds(20));
  EXPECT_EQ(checked_, Outcome::stuck);
  EXPECT_EQ(fence_.error(), EBUSY);
  pass(seconds(100));
  EXPECT_EQ(checked_, Outcome::open) << "it was told";
  device_.worsen(DeviceHealth::Level::gone);
  ASSERT_TRUE(fence_.moves(false));
  EXPECT_EQ(fence_.move(false), Outcome::closed);
}

TEST_F(FenceSteps, ADestructionThatHangsIsToldAndCountsWhenItIsDone) {
  stop_->result = EIO;
  fence_.begin(returned_, stop_);
  const auto destruction = destroy();
  pass(options_.stuck_after + milliseconds(10));
  EXPECT_EQ(checked_, Outcome::stuck);
  EXPECT_EQ(fence_.error(), ETIMEDOUT);
  destruction->result = 0;
  ASSERT_TRUE(fence_.moves(false));
  EXPECT_EQ(fence_.move(false), Outcome::closed);
}

// DEVICE_FATAL: its driver may say anything.
TEST_F(FenceSteps, OfALostDeviceNothingCountsUntilItIsGone) {
  device_.worsen(DeviceHealth::Level::lost);
  fence_.begin(returned_, stop_);
  ask();
  destroy()->result = 0;
  EXPECT_FALSE(fence_.moves(true));
  device_.worsen(DeviceHealth::Level::gone);
  ASSERT_TRUE(fence_.moves(true));
  EXPECT_EQ(fence_.move(true), Outcome::closed);
  EXPECT_EQ(fence_.proof(), FenceProof::gone);
}

// Of many that are to stop at once the device takes one after the other.
TEST_F(FenceSteps, WorkIsNotOverdueBeforeTheQueuePairHasStopped) {
  stop_->result = Answer::open;
  fence_.begin(returned_, stop_);
  pass(options_.stuck_after - 2 * options_.flush_wait);
  EXPECT_FALSE(fence_.moves(true)) << "what is back may not be all";
  stop_->result = 0;
  ask();
  EXPECT_EQ(fence_.move(true), Outcome::closed);
  EXPECT_EQ(fence_.proof(), FenceProof::returned);
}

// The firmware hangs.
TEST_F(FenceSteps, AStopThatDoesNotReturnIsToldInTime) {
  stop_->result = Answer::open;
  fence_.begin(returned_, stop_);
  pass(options_.stuck_after + options_.flush_wait);
  const auto destruction = destroy();
  pass(milliseconds(2));
  EXPECT_EQ(checked_, Outcome::stuck);
  EXPECT_EQ(fence_.error(), ETIMEDOUT);
  EXPECT_FALSE(fence_.moves(true)) << "nothing is proved";
  stop_->result = 0;
  destruction->result = 0;
  ASSERT_TRUE(fence_.moves(false));
  EXPECT_EQ(fence_.move(false), Outcome::closed);
}

TEST_F(FenceSteps, WhereAStopCannotEvenBeAskedForTheQueuePairIsDestroyed) {
  fence_.begin(returned_, nullptr);
  ASSERT_TRUE(fence_.moves(false));
  destroy()->result = 0;
  EXPECT_EQ(fence_.move(false), Outcome::closed);
}

TEST_F(FenceSteps, WhatNobodyCouldReachIsAtItsEnd) {
  fence_.begin_unused();
  ASSERT_TRUE(fence_.moves(false));
  EXPECT_EQ(fence_.move(false), Outcome::closed);
  EXPECT_EQ(timers_.size(), 0U);
}

TEST_F(FenceSteps, TellsHowLongItTook) {
  pass(milliseconds(5));
  fence_.begin(returned_, stop_);
  pass(milliseconds(3));
  EXPECT_EQ(fence_.took(), milliseconds(3));
  EXPECT_EQ(fence_.lost(), Duration(0));
}

}  // namespace
}  // namespace nccl_ha::fabric::verbs
