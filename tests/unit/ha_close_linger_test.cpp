#include <gtest/gtest.h>

#include "ha/close_linger.h"

namespace nccl_ha::ha {
namespace {

constexpr Instant linger_start{std::chrono::seconds(7)};

CloseLinger begun() {
  CloseLinger linger;
  EXPECT_FALSE(linger.under_way());
  linger.begin(linger_start);
  EXPECT_TRUE(linger.under_way());
  return linger;
}

TEST(CloseLinger, WhoClosesWaitsForTheConfirmation) {
  CloseLinger linger = begun();
  EXPECT_FALSE(linger.is_over(false, true, linger_start));
  EXPECT_TRUE(linger.is_over(true, true, linger_start));
  EXPECT_TRUE(linger.is_over(true, false, linger_start));
  EXPECT_FALSE(linger.is_over(false, false, linger_start)) << "the stream may bring it";
}

TEST(CloseLinger, NotForLongerThanItsLimit) {
  CloseLinger linger = begun();
  EXPECT_FALSE(linger.is_over(false, true, linger_start + CloseLinger::limit - Duration(1)));
  linger.begin(linger_start + CloseLinger::limit / 2);
  EXPECT_EQ(linger.until(), linger_start + CloseLinger::limit) << "it begins once";
  EXPECT_TRUE(linger.is_over(false, true, linger_start + CloseLinger::limit));
  EXPECT_EQ(linger.broken(), nullptr) << linger.broken();
}

TEST(CloseLinger, WhoHasSomethingToSayMayStayLongerUnlessItsProcessEnds) {
  CloseLinger linger;
  linger.begin(linger_start, 10 * CloseLinger::limit);
  EXPECT_FALSE(linger.is_over(false, true, linger_start + 9 * CloseLinger::limit));
  EXPECT_TRUE(linger.is_over(false, true, linger_start + 10 * CloseLinger::limit));
  linger.hurry();
  EXPECT_EQ(linger.until(), linger_start + CloseLinger::limit);
  EXPECT_TRUE(linger.is_over(false, true, linger_start + CloseLinger::limit));
  EXPECT_EQ(linger.broken(), nullptr) << linger.broken();
  CloseLinger other;
  other.begin(linger_start, Duration(1));
  EXPECT_EQ(other.until(), linger_start + CloseLinger::limit) << "never less than the limit";
}

TEST(CloseLinger, NobodyStaysForAPeerThatEndsAsWell) {
  CloseLinger late;
  late.begin(linger_start, 10 * CloseLinger::limit);
  late.on_last_words(linger_start + 4 * CloseLinger::limit);
  EXPECT_EQ(late.until(), linger_start + 5 * CloseLinger::limit);
  CloseLinger before;
  before.on_last_words(linger_start);
  before.begin(linger_start, 10 * CloseLinger::limit);
  EXPECT_EQ(before.until(), linger_start + CloseLinger::limit);
}

TEST(CloseLinger, WhoIsToldThatThePeerEndsGoesOnUntilItsAnswerHasArrived) {
  CloseLinger linger;
  linger.on_last_words(linger_start);
  linger.begin(linger_start);
  EXPECT_FALSE(linger.is_over(true, true, linger_start));
  EXPECT_TRUE(linger.is_over(true, false, linger_start)) << "the stream sends it by itself";
  linger.on_answer_arrived();
  EXPECT_TRUE(linger.is_over(true, true, linger_start));
}

TEST(CloseLinger, WhenBothEndNobodyWaitsForTheOthersConfirmation) {
  CloseLinger linger = begun();
  linger.on_last_words(linger_start);
  EXPECT_FALSE(linger.is_over(false, true, linger_start));
  linger.on_answer_arrived();
  EXPECT_TRUE(linger.is_over(false, true, linger_start));
}

TEST(CloseLinger, WhenThePeersStreamHasEndedItIsOver) {
  CloseLinger linger = begun();
  linger.on_peer_left();
  EXPECT_TRUE(linger.is_over(false, true, linger_start));
}

TEST(CloseLinger, AnEndIsForGood) {
  CloseLinger linger = begun();
  linger.end();
  EXPECT_FALSE(linger.under_way());
  linger.begin(linger_start);
  EXPECT_FALSE(linger.under_way());
}

}  // namespace
}  // namespace nccl_ha::ha
