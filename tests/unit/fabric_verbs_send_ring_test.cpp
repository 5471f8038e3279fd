#include <gtest/gtest.h>

#include <array>

#include "runtime/fabric/verbs/send_ring.h"
#include "tests/support/fake_queue_pair.h"

namespace nccl_ha::fabric::verbs {
namespace {

using Slot = SendRing::Slot;

constexpr uint32_t writes_max = 16;

class SendRings : public testing::Test {
 protected:
  void push(uint64_t id, bool unsignaled = false, uint32_t bytes = 0, uint32_t inline_max = 0) {
    const Gather gather{memory_.data(), bytes, 7};
    ring_.push({id, 0, unsignaled, SendRing::Internal::no}, std::span(&gather, bytes == 0 ? 0 : 1),
               inline_max);
  }
  void post(uint64_t id, bool unsignaled = false) {
    push(id, unsignaled);
    ASSERT_EQ(ring_.post(&pair_), 0);
  }

  std::array<std::byte, 64> memory_{};
  test::FakeQueuePair pair_;
  SendRing ring_{WorkId{3, 9, WorkId::Lane::send, 0}, writes_max};
};

TEST_F(SendRings, OneDoorbellGivesAllThatWaitsInOrder) {
  for (uint64_t id = 1; id <= 5; ++id) {
    push(id);
  }
  EXPECT_EQ(ring_.waiting(), 5U);
  EXPECT_TRUE(pair_.sends.empty());
  ASSERT_EQ(ring_.post(&pair_), 0);
  EXPECT_EQ(ring_.waiting(), 0U);
  EXPECT_EQ(pair_.doorbells, 1U);
  ASSERT_EQ(pair_.sends.size(), 5U);
  for (size_t i = 0; i < 5; ++i) {
    const WorkId id = WorkId::unpack(pair_.sends[i].wr_id);
    EXPECT_EQ(id.path, 3U);
    EXPECT_EQ(id.generation, 9U);
    EXPECT_EQ(ring_.ahead_of(id.position), i);
    EXPECT_EQ(ring_.at(id.position).id, i + 1);
  }
}

TEST_F(SendRings, OfSeveralOnlyTheLastThatIsAwaitedCompletes) {
  push(1);
  push(2);
  push(3, true);
  ASSERT_EQ(ring_.post(&pair_), 0);
  EXPECT_FALSE(pair_.signaled(0));
  EXPECT_TRUE(pair_.signaled(1));
  EXPECT_FALSE(pair_.signaled(2));
  EXPECT_TRUE(ring_.ends_unsignaled());
  post(4);
  EXPECT_TRUE(pair_.signaled(3));
  EXPECT_FALSE(ring_.ends_unsignaled());
}

TEST_F(SendRings, LargeOnesCompleteByThemselves) {
  std::array<std::byte, 16384> large{};
  const Gather gather{large.data(), large.size(), 7};
  ring_.push({1, 0, false, SendRing::Internal::no}, std::span(&gather, 1), 0);
  push(2);
  ASSERT_EQ(ring_.post(&pair_), 0);
  EXPECT_TRUE(pair_.signaled(0));
  EXPECT_TRUE(pair_.signaled(1));
}

TEST_F(SendRings, NowAndThenOneThatNobodyAwaitsCompletes) {
  size_t quiet = 0;
  for (uint64_t id = 0; id < 100; ++id) {
    post(id, true);
    quiet = pair_.signaled(id) ? 0 : quiet + 1;
    EXPECT_LE(quiet, writes_max / 4);
    ring_.pop();
  }
}

TEST_F(SendRings, OnlyWhatIsSmallAndHostMemoryIsCopied) {
  push(1, false, 32, 32);
  push(2, false, 33, 32);
  push(3, false, 32, 0);
  push(4, false, 0, 32);
  ASSERT_EQ(ring_.post(&pair_), 0);
  EXPECT_TRUE(pair_.inlined(0));
  EXPECT_FALSE(pair_.inlined(1));
  EXPECT_FALSE(pair_.inlined(2));
  EXPECT_FALSE(pair_.inlined(3)) << "of no bytes";
}

TEST_F(SendRings, CountsBytesAndProgress) {
  const uint64_t before = ring_.progress();
  push(1, false, 10);
  push(2, false, 20);
  EXPECT_EQ(ring_.progress(), before + 1) << "the first one ends idleness";
  ASSERT_EQ(ring_.post(&pair_), 0);
  EXPECT_EQ(ring_.open_bytes(), 30U);
  EXPECT_EQ(ring_.pop().bytes, 10U);
  EXPECT_EQ(ring_.open_bytes(), 20U);
  EXPECT_EQ(ring_.progress(), before + 2);
}

TEST_F(SendRings, IsFullAtItsLimitAndHoldsMoreOfThePathsOwn) {
  for (uint64_t id = 0; id < writes_max; ++id) {
    EXPECT_FALSE(ring_.full());
    post(id);
  }
  EXPECT_TRUE(ring_.full());
  for (uint32_t i = 0; i < SendRing::internal_max; ++i) {
    post(100 + i);
  }
  for (uint64_t id = 0; id < writes_max; ++id) {
    EXPECT_EQ(ring_.pop().id, id);
  }
  EXPECT_FALSE(ring_.full());
}

// Positions begin shortly before their wrap.
TEST_F(SendRings, PositionsWrap) {
  for (uint64_t id = 0; id < 100; ++id) {
    post(id);
    const WorkId named = WorkId::unpack(pair_.sends.back().wr_id);
    EXPECT_EQ(ring_.ahead_of(named.position), 0U);
    EXPECT_EQ(ring_.at(named.position).id, id);
    EXPECT_EQ(ring_.pop().id, id);
    EXPECT_FALSE(ring_.holds(ring_.ahead_of(named.position))) << "it has come back";
  }
}

TEST_F(SendRings, WhatTheDeviceNeverGotIsNotWaitedFor) {
  post(1);
  post(2);
  EXPECT_FALSE(ring_.all_returned());
  push(3);
  ring_.stop();
  EXPECT_EQ(ring_.waiting(), 0U);
  ring_.pop();
  EXPECT_FALSE(ring_.all_returned());
  ring_.pop();
  EXPECT_TRUE(ring_.all_returned());
  EXPECT_FALSE(ring_.empty()) << "the third is there, and nobody will complete it";
}

TEST_F(SendRings, APartOfABatchMayBeRefused) {
  for (uint64_t id = 1; id <= 5; ++id) {
    push(id);
  }
  pair_.room = 2;
  EXPECT_EQ(ring_.post(&pair_), ENOMEM);
  ring_.stop();
  ring_.pop();
  EXPECT_FALSE(ring_.all_returned());
  ring_.pop();
  EXPECT_TRUE(ring_.all_returned());
}

}  // namespace
}  // namespace nccl_ha::fabric::verbs
