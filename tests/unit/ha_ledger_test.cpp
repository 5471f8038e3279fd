#include <gtest/gtest.h>

#include "ha/backoff.h"
#include "ha/error_class.h"
#include "ha/ledger.h"

namespace nccl_ha::ha {
namespace {

TEST(ChunkLedger, AMessageIsDoneWhenEachChunkWasAcknowledged) {
  ChunkLedger ledger;
  ledger.begin(3);
  for (uint8_t chunk = 0; chunk < 3; ++chunk) {
    EXPECT_EQ(ledger.holder(chunk), ChunkLedger::nobody);
    ledger.give(chunk, chunk);
  }
  EXPECT_FALSE(ledger.acknowledge(1));
  EXPECT_EQ(ledger.holder(1), ChunkLedger::nobody);
  ledger.take_back(2);
  EXPECT_EQ(ledger.holder(2), ChunkLedger::nobody);
  EXPECT_EQ(ledger.open(), 2U) << "taken back is not acknowledged";
  ledger.give(2, 0);
  EXPECT_FALSE(ledger.acknowledge(0));
  EXPECT_TRUE(ledger.acknowledge(2));
}

TEST(ArrivalReport, SaysOnlyWhatArrived) {
  ArrivalReport report;
  report.completed = 100;
  report.groups = {{false, {0b101, 0}}, {true, {}}};
  EXPECT_TRUE(report.has(99, 7, 15)) << "below the first open group everything arrived";
  EXPECT_TRUE(report.has(100, 0, 0));
  EXPECT_FALSE(report.has(100, 0, 1));
  EXPECT_TRUE(report.has(100, 0, 2));
  EXPECT_FALSE(report.has(100, 1, 0));
  EXPECT_FALSE(report.has(100, 2, 0)) << "a position that the group does not have";
  EXPECT_TRUE(report.has(101, 5, 3));
  EXPECT_FALSE(report.has(102, 0, 0));
  EXPECT_TRUE(report.covers(101));
  EXPECT_FALSE(report.covers(102));
}

TEST(ErrorClass, OnlyThePathsOwnTroublesAreWorthAnotherPath) {
  using fabric::CompletionStatus;
  EXPECT_EQ(classify(CompletionStatus::retry_exceeded), ErrorClass::path);
  EXPECT_EQ(classify(CompletionStatus::flushed), ErrorClass::path);
  EXPECT_EQ(classify(CompletionStatus::device_fault), ErrorClass::path);
  EXPECT_EQ(classify(CompletionStatus::remote_access), ErrorClass::program);
  EXPECT_EQ(classify(CompletionStatus::local_protection), ErrorClass::program);
  EXPECT_EQ(classify(CompletionStatus::length_error), ErrorClass::program);
}

TEST(Backoff, BeginsAtOnceGrowsAndStaysBelowItsLimit) {
  using std::chrono::milliseconds;
  Random random(1);
  Backoff backoff(milliseconds(20), milliseconds(1000));
  EXPECT_EQ(backoff.next(random), Duration(0));
  Duration base = milliseconds(20);
  for (int i = 0; i < 12; ++i) {
    const Duration wait = backoff.next(random);
    EXPECT_GE(wait, base / 2) << i;
    EXPECT_LE(wait, base) << i;
    base = std::min<Duration>(base * 2, milliseconds(1000));
  }
  EXPECT_EQ(base, Duration(milliseconds(1000)));
  backoff.reset();
  EXPECT_EQ(backoff.next(random), Duration(0));
}

}  // namespace
}  // namespace nccl_ha::ha
