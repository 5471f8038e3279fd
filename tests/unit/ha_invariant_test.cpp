// A machine that is driven as it must not be says so, once, and does no harm.
#include <gtest/gtest.h>

#include <array>

#include "ha/candidates.h"
#include "ha/chunk_split.h"
#include "ha/close_linger.h"
#include "ha/control_sequencer.h"
#include "ha/invariant.h"
#include "ha/lane.h"
#include "ha/ledger.h"
#include "ha/path_health.h"
#include "ha/retry_budget.h"
#include "ha/rotation.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;

TEST(Invariants, TheFirstOneThatDoesNotHoldIsKept) {
  const Invariants invariants;
  EXPECT_TRUE(invariants.hold(true, "one"));
  EXPECT_EQ(invariants.broken(), nullptr);
  EXPECT_FALSE(invariants.hold(false, "two"));
  EXPECT_FALSE(invariants.hold(false, "three"));
  EXPECT_TRUE(invariants.hold(true, "four"));
  EXPECT_STREQ(invariants.broken(), "two");
}

TEST(Invariants, WhatCostsMoreIsLookedAtInSimulationsOnly) {
  const bool before = deep_checks();
  unsigned looks = 0;
  const auto condition = [&] { return ++looks == 0; };
  const Invariants invariants;
  invariants.hold_deeply(condition, "deep");
  EXPECT_EQ(looks, before ? 1U : 0U);
  check_deeply();
  invariants.hold_deeply(condition, "deep");
  EXPECT_EQ(looks, before ? 2U : 1U);
  EXPECT_STREQ(invariants.broken(), "deep");
}

TEST(Invariants, AChunkThatIsAcknowledgedTwiceDoesNotEndItsMessage) {
  ChunkLedger ledger;
  ledger.begin(2);
  ledger.give(0, 0);
  ledger.give(1, 1);
  EXPECT_FALSE(ledger.acknowledge(0, 0));
  EXPECT_EQ(ledger.broken(), nullptr);
  EXPECT_FALSE(ledger.acknowledge(0, 0));
  EXPECT_NE(ledger.broken(), nullptr);
  EXPECT_EQ(ledger.open(), 1U);
}

TEST(Invariants, NorDoesOneThatNobodyHoldsOrThatThereCannotBe) {
  for (const uint32_t chunk : {0U, 1U, 16U, 70000U}) {
    ChunkLedger ledger;
    ledger.begin(1);
    EXPECT_FALSE(ledger.acknowledge(chunk, 0)) << chunk;
    EXPECT_NE(ledger.broken(), nullptr) << chunk;
  }
  ChunkLedger ledger;
  ledger.begin(1);
  ledger.give(ledger_chunks_max, 0);
  EXPECT_NE(ledger.broken(), nullptr);
}

TEST(Invariants, AMessageIsNotSplitForNobody) {
  ChunkSplit split;
  split.by_weight(1000, std::array<uint32_t, 2>{0, 0});
  EXPECT_NE(split.broken(), nullptr);
  EXPECT_EQ(split.count(), 1U) << "it stays whole";
  EXPECT_EQ(split.bytes(0), 1000U);
}

TEST(Invariants, ARotationWithoutSharesHasNoTurn) {
  Rotation rotation;
  static_cast<void>(rotation.next());
  EXPECT_NE(rotation.broken(), nullptr);
}

TEST(Invariants, AWorkingLaneIsNotMadeAnew) {
  SenderLane lane;
  static_cast<void>(lane.on_ready());
  EXPECT_EQ(lane.broken(), nullptr);
  lane.reopened();
  EXPECT_NE(lane.broken(), nullptr);
}

TEST(Invariants, AHeartbeatIsAWrite) {
  PathHealth health;
  health.begin({});
  static_cast<void>(health.look({}, {.writes = 1, .pulses = 2, .bytes = 0}, {}, {}));
  EXPECT_NE(health.broken(), nullptr);
}

TEST(Invariants, TimeDoesNotGoBack) {
  PathHealth health;
  health.begin({Instant(milliseconds(10)), Duration(0)});
  static_cast<void>(health.look({Instant(milliseconds(9)), Duration(0)}, {}, {}, {}));
  EXPECT_NE(health.broken(), nullptr);
}

}  // namespace
}  // namespace nccl_ha::ha
