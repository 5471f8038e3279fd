#include <gtest/gtest.h>

#include "runtime/fabric/verbs/receive_ring.h"
#include "tests/support/fake_queue_pair.h"

namespace nccl_ha::fabric::verbs {
namespace {

constexpr uint32_t receives_max = 40;
constexpr uint32_t spare = 4;

class ReceiveRings : public testing::Test {
 protected:
  void post(bool internal = false) {
    if (internal) {
      ring_.hold(true);
      ASSERT_EQ(ring_.post_held(&pair_), 0);
    } else {
      ASSERT_TRUE(ring_.post(&pair_));
    }
  }
  uint32_t position(size_t posted) const {
    return WorkId::unpack(pair_.receives[posted].wr_id).position;
  }

  test::FakeQueuePair pair_;
  ReceiveRing ring_{WorkId{3, 9, WorkId::Lane::receive, 0}, receives_max, spare};
};

TEST_F(ReceiveRings, HoldsBackWhatThePeerDoesNotUse) {
  for (uint32_t i = 0; i < spare; ++i) {
    ring_.hold();
    EXPECT_FALSE(ring_.holds_too_many());
  }
  EXPECT_EQ(pair_.doorbells, 0U);
  ring_.hold();
  EXPECT_TRUE(ring_.holds_too_many());
  ASSERT_EQ(ring_.post_held(&pair_), 0);
  EXPECT_FALSE(ring_.holds_too_many());
  EXPECT_EQ(pair_.receives.size(), spare + 1);
  EXPECT_EQ(ring_.post_held(&pair_), 0);
  EXPECT_EQ(pair_.receives.size(), spare + 1) << "given twice";
}

TEST_F(ReceiveRings, ManyGoInOrder) {
  for (uint32_t i = 0; i < receives_max; ++i) {
    ring_.hold();
  }
  ASSERT_EQ(ring_.post_held(&pair_), 0);
  ASSERT_EQ(pair_.receives.size(), receives_max);
  EXPECT_LE(pair_.doorbells, receives_max / 16 + 1);
  for (size_t i = 0; i < receives_max; ++i) {
    EXPECT_EQ(pair_.receives[i].num_sge, 0);
    EXPECT_EQ(ring_.ahead_of(position(i)), 0U);
    ring_.pop();
  }
  EXPECT_TRUE(ring_.empty());
}

TEST_F(ReceiveRings, HasRoomForTheProbesBesides) {
  for (uint32_t i = 0; i < ReceiveRing::probes; ++i) {
    post(true);
  }
  for (uint32_t i = 0; i < receives_max; ++i) {
    EXPECT_FALSE(ring_.full());
    ring_.hold();
  }
  EXPECT_TRUE(ring_.full());
  EXPECT_TRUE(ring_.pop().internal);
  EXPECT_TRUE(ring_.pop().internal);
  EXPECT_FALSE(ring_.pop().internal);
}

TEST_F(ReceiveRings, OneThatIsUsedTakesThoseBeforeItAlong) {
  for (const bool internal : {false, false, true, false, false}) {
    post(internal);
  }
  const uint32_t ahead = ring_.ahead_of(position(2));
  ASSERT_TRUE(ring_.holds(ahead));
  EXPECT_TRUE(ring_.pop_behind(ahead).internal);
  EXPECT_FALSE(ring_.holds(ring_.ahead_of(position(1))));
  EXPECT_EQ(ring_.ahead_of(position(3)), 0U);
  EXPECT_FALSE(ring_.pop().internal);
}

TEST_F(ReceiveRings, OneThatTheDeviceRefusesIsNotThere) {
  pair_.room = 0;
  EXPECT_FALSE(ring_.post(&pair_));
  EXPECT_TRUE(ring_.empty());
}

TEST_F(ReceiveRings, OneUnusedReceiveMustComeBack) {
  post();
  ring_.stop();
  ring_.pop();
  EXPECT_FALSE(ring_.all_returned()) << "it was used before the error";
  ring_.note_returned();
  EXPECT_TRUE(ring_.all_returned());
}

TEST_F(ReceiveRings, WhatTheDeviceNeverGotIsNotWaitedFor) {
  post();
  ring_.hold();
  ring_.stop();
  ring_.note_returned();
  EXPECT_FALSE(ring_.all_returned());
  ring_.pop();
  EXPECT_TRUE(ring_.all_returned());
  EXPECT_EQ(ring_.post_held(&pair_), 0);
  EXPECT_EQ(pair_.receives.size(), 1U) << "nothing is given to a broken queue pair";
}

TEST_F(ReceiveRings, APartMayBeRefused) {
  for (int i = 0; i < 20; ++i) {
    ring_.hold();
  }
  pair_.room = 17;
  EXPECT_EQ(ring_.post_held(&pair_), ENOMEM);
  ring_.stop();
  ring_.note_returned();
  for (int i = 0; i < 17; ++i) {
    EXPECT_FALSE(ring_.all_returned());
    ring_.pop();
  }
  EXPECT_TRUE(ring_.all_returned());
}

}  // namespace
}  // namespace nccl_ha::fabric::verbs
