#include <gtest/gtest.h>

#include "ha/redial.h"

namespace nccl_ha::ha {
namespace {

using Answer = Redial::Answer;

constexpr Instant redial_start{std::chrono::seconds(100)};

Redial::Next fails(Redial& redial, Answer answer, bool proven = false) {
  redial.on_dial();
  return redial.on_answer(answer, proven, 0, redial_start);
}

TEST(Redial, TriesTheOtherWaysQuicklyAndAllOfThemAfterAPause) {
  Redial redial;
  redial.begin(3, 1);
  EXPECT_EQ(redial.way(), 1U);
  EXPECT_EQ(fails(redial, Answer::silence).in, Redial::next_way);
  EXPECT_EQ(redial.way(), 2U);
  EXPECT_EQ(fails(redial, Answer::silence).in, Redial::next_way);
  EXPECT_EQ(redial.way(), 0U);
  EXPECT_EQ(fails(redial, Answer::silence).in, PeerVerdict::usual_pause);
  EXPECT_EQ(redial.way(), 1U) << "where it began";
  EXPECT_EQ(fails(redial, Answer::silence).in, Redial::next_way) << "counted anew";
}

TEST(Redial, TheOnlyWayIsTriedAfterAPause) {
  Redial redial;
  redial.begin(1, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(fails(redial, Answer::silence).in, PeerVerdict::usual_pause);
    EXPECT_EQ(redial.way(), 0U);
  }
}

TEST(Redial, StaysWhereThePeersHostRefuses) {
  Redial redial;
  redial.begin(2, 0);
  const auto next = fails(redial, Answer::refused, true);
  EXPECT_FALSE(next.dead) << "it may be overloaded";
  EXPECT_EQ(next.in, PeerVerdict::refusals_apart);
  EXPECT_EQ(redial.way(), 0U);
  redial.on_dial();
  EXPECT_TRUE(
      redial.on_answer(Answer::refused, true, 0, redial_start + PeerVerdict::refusals_apart).dead);
}

TEST(Redial, BeginsAnewWithWhatProvedGood) {
  Redial redial;
  redial.begin(4, 3);
  static_cast<void>(fails(redial, Answer::silence));
  static_cast<void>(fails(redial, Answer::silence));
  redial.reorder(5);
  EXPECT_EQ(redial.way(), 0U);
  EXPECT_EQ(redial.tried(), 2U);
  redial.begin(5, 4);
  EXPECT_EQ(redial.way(), 4U);
  EXPECT_EQ(redial.tried(), 0U);
}

TEST(Redial, WhatWasRefusedBeforeItBeganSaysNothing) {
  Redial redial;
  redial.begin(1, 0);
  static_cast<void>(fails(redial, Answer::refused, true));
  redial.begin(1, 0);
  redial.on_dial();
  EXPECT_FALSE(
      redial.on_answer(Answer::refused, true, 0, redial_start + PeerVerdict::refusals_apart).dead);
}

/// Where most lead nowhere, as from bridges of containers.
TEST(Redial, WaysThatDoNotAnswerHoldTheOthersUpForLessThanASecond) {
  Redial redial;
  redial.begin(24, 0);
  Duration all{};
  for (int i = 0; i < 23; ++i) {
    redial.on_dial();
    all += redial.limit();
    all += redial.on_answer(Answer::silence, false, 0, redial_start).in;
  }
  EXPECT_LE(all, std::chrono::seconds(1));
  for (int i = 0; i < 3 * 24; ++i) {
    static_cast<void>(fails(redial, Answer::silence));
  }
  EXPECT_EQ(redial.limit(), Redial::longest_dial) << "ARP takes a second";
  redial.begin(1, 0);
  EXPECT_EQ(redial.limit(), Redial::longest_dial) << "it holds nothing up";
}

}  // namespace
}  // namespace nccl_ha::ha
