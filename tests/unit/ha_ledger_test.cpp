#include <gtest/gtest.h>

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
  EXPECT_FALSE(ledger.acknowledge(1, 1));
  EXPECT_EQ(ledger.holder(1), ChunkLedger::nobody);
  ledger.take_back(2);
  EXPECT_EQ(ledger.holder(2), ChunkLedger::nobody);
  EXPECT_EQ(ledger.open(), 2U) << "taken back is not acknowledged";
  ledger.give(2, 0);
  EXPECT_FALSE(ledger.acknowledge(0, 0));
  EXPECT_TRUE(ledger.acknowledge(2, 0));
}

TEST(ChunkLedger, WhatWasAcknowledgedAndIsLostIsOpenAgain) {
  ChunkLedger ledger;
  ledger.begin(2);
  ledger.give(0, 1);
  ledger.give(1, 1);
  EXPECT_FALSE(ledger.acknowledge(0, 1));
  ledger.reopen(0);
  EXPECT_EQ(ledger.open(), 2U);
  EXPECT_FALSE(ledger.acknowledge(1, 1));
  ledger.give(0, 2);
  EXPECT_TRUE(ledger.acknowledge(0, 2));
  EXPECT_EQ(ledger.broken(), nullptr);
}

TEST(AcknowledgementLog, KnowsWhoAcknowledgedWhat) {
  AcknowledgementLog<4, 1> book;
  EXPECT_FALSE(book.knows(0, 0)) << "nothing was sent yet";
  book.begin(5, 0);
  EXPECT_FALSE(book.knows(1, 0));
  book.note(5, 0, 3, 1);
  EXPECT_TRUE(book.knows(1, 0));
  EXPECT_FALSE(book.knows(0, 0));
  EXPECT_EQ(book.lane_of(5, 0, 3), 1U);
  EXPECT_EQ(book.lane_of(5, 0, 2), ChunkLedger::nobody);
  EXPECT_EQ(book.lane_of(1, 0, 3), ChunkLedger::nobody) << "another group, at the same place";
  book.begin(9, 0);
  EXPECT_FALSE(book.knows(1, 0)) << "the peer opened group 9, so it has all of group 5";
}

/// Later groups may have fewer messages, so that nothing takes the place of the last ones.
TEST(AcknowledgementLog, WhatTheReceiverMustHaveWholeIsNoReasonToWaitForAFence) {
  AcknowledgementLog<4, 2> book;
  for (const uint32_t position : {0U, 1U}) {
    book.begin(5, position);
    book.note(5, position, 0, 1);
  }
  book.begin(9, 0);
  book.note(9, 0, 0, 2);
  EXPECT_TRUE(book.knows(1, 5)) << "nothing else shows that group 5 arrived";
  EXPECT_FALSE(book.knows(1, 6));
  EXPECT_TRUE(book.knows(2, 6)) << "of another lane, in a later group";
}

TEST(AcknowledgementLog, AFenceThatWasHeededLeavesNothingOfItsLane) {
  AcknowledgementLog<4, 1> book;
  book.begin(5, 0);
  book.note(5, 0, 0, 1);
  book.note(5, 0, 1, 2);
  book.forget(1);
  EXPECT_FALSE(book.knows(1, 0));
  EXPECT_EQ(book.lane_of(5, 0, 0), ChunkLedger::nobody);
  EXPECT_EQ(book.lane_of(5, 0, 1), 2U) << "another lane's";
  book.note(5, 0, 2, 1);
  EXPECT_TRUE(book.knows(1, 0)) << "its next path acknowledged something";
}

TEST(AcknowledgementLog, AnAcknowledgementThatComesLateIsNotTakenForTheNextGroupsAtItsPlace) {
  AcknowledgementLog<4, 1> book;
  ArrivalReport report;
  report.completed = 6;
  report.groups = {{false, {0}}};
  book.begin(2, 0);
  book.begin(6, 0);  // where group 2 was
  book.note(2, 0, 0, 1);
  EXPECT_FALSE(book.contradicts(1, report));
  book.note(6, 0, 0, 1);
  EXPECT_TRUE(book.contradicts(1, report));
  EXPECT_FALSE(book.contradicts(0, report)) << "another lane";
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

}  // namespace
}  // namespace nccl_ha::ha
