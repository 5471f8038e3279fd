#include <gtest/gtest.h>

#include <array>
#include <map>
#include <vector>

#include "ha/rotation.h"
#include "ha/serving_set.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Step = ServingSet::Step;

constexpr Instant serving_start{seconds(100)};

/// Two primaries and two shadows, which work or do not.
class ServingSetTest : public testing::Test {
 protected:
  Step look(Instant now) { return set_.look(view(), now); }
  ServingSet::View view() const { return {lanes_, wanted_, between_}; }
  std::vector<unsigned> serving() const {
    std::vector<unsigned> found;
    for (const ServingSet::Share& share : set_.shares()) {
      found.push_back(share.lane);
    }
    return found;
  }
  void set(size_t lane, bool usable, Instant since = serving_start) {
    lanes_[lane].usable = usable;
    lanes_[lane].since = since;
  }
  void fail_primaries() {
    set(0, false);
    set(1, false);
  }

  std::array<ServingSet::Lane, 4> lanes_{ServingSet::Lane{true, 0}, ServingSet::Lane{true, 0},
                                         ServingSet::Lane{true, 1}, ServingSet::Lane{true, 2}};
  bool wanted_ = true;
  bool between_ = true;
  ServingSet set_{seconds(5)};
};

TEST_F(ServingSetTest, AllPrimariesThatWorkCarry) {
  EXPECT_EQ(look(serving_start), Step::stay);
  EXPECT_EQ(serving(), (std::vector<unsigned>{0, 1}));
  set(0, false);
  EXPECT_EQ(look(serving_start), Step::stay) << "one of several is enough";
  EXPECT_EQ(serving(), (std::vector<unsigned>{1}));
  EXPECT_FALSE(set_.serves(0));
  EXPECT_TRUE(set_.serves(1));
}

TEST_F(ServingSetTest, TheBestShadowTakesOver) {
  fail_primaries();
  EXPECT_EQ(look(serving_start), Step::move);
  EXPECT_EQ(set_.rank(), 1);
  EXPECT_EQ(serving(), (std::vector<unsigned>{2}));
  set(2, false);
  EXPECT_EQ(look(serving_start), Step::move);
  EXPECT_EQ(serving(), (std::vector<unsigned>{3}));
}

TEST_F(ServingSetTest, NothingMovesToWhatDoesNotWork) {
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    set(lane, false);
  }
  EXPECT_EQ(look(serving_start), Step::stay);
  EXPECT_TRUE(serving().empty());
  set(3, true);
  EXPECT_EQ(look(serving_start), Step::move);
  EXPECT_EQ(serving(), (std::vector<unsigned>{3}));
}

TEST_F(ServingSetTest, ARailThatIsDeadHoldsNoOtherRailUp) {
  lanes_[1].rail = 1;
  fail_primaries();
  ASSERT_EQ(look(serving_start), Step::move);
  set(0, true, serving_start + seconds(1));
  EXPECT_EQ(look(serving_start + seconds(5)), Step::later);
  EXPECT_EQ(set_.look_at(), serving_start + seconds(6));
  EXPECT_EQ(look(serving_start + seconds(6)), Step::move);
  EXPECT_EQ(serving(), (std::vector<unsigned>{0}));
  set(1, true, serving_start + seconds(7));
  EXPECT_EQ(look(serving_start + seconds(7)), Step::stay) << "it joins as soon as it works";
  EXPECT_EQ(serving(), (std::vector<unsigned>{0, 1}));
}

TEST_F(ServingSetTest, TwoLanesOfARailComeBackTogether) {
  fail_primaries();
  ASSERT_EQ(look(serving_start), Step::move);
  set(0, true, serving_start);
  EXPECT_EQ(look(serving_start + seconds(60)), Step::stay);
}

TEST_F(ServingSetTest, GoesBackOnlyWhenAllOfTheBetterRankHaveWorkedForLongEnough) {
  fail_primaries();
  ASSERT_EQ(look(serving_start), Step::move);
  set(0, true);
  EXPECT_EQ(look(serving_start), Step::stay) << "one of two";
  set(1, true);
  EXPECT_EQ(look(serving_start), Step::later);
  EXPECT_EQ(set_.look_at(), serving_start + seconds(5));
  EXPECT_EQ(look(serving_start + seconds(5) - Duration(1)), Step::later);
  EXPECT_EQ(set_.rank(), 1);
  EXPECT_EQ(look(serving_start + seconds(5)), Step::move);
  EXPECT_EQ(serving(), (std::vector<unsigned>{0, 1}));
}

TEST_F(ServingSetTest, APrimaryThatFailsMeanwhileBeginsItsTimeAnew) {
  fail_primaries();
  ASSERT_EQ(look(serving_start), Step::move);
  set(0, true);
  set(1, true);
  EXPECT_EQ(look(serving_start), Step::later);
  set(1, false);
  EXPECT_EQ(look(serving_start + seconds(4)), Step::stay);
  set(1, true, serving_start + seconds(4));
  EXPECT_EQ(look(serving_start + seconds(6)), Step::later);
  EXPECT_EQ(set_.look_at(), serving_start + seconds(9));
}

TEST_F(ServingSetTest, AChunkEndsWhereItBegan) {
  fail_primaries();
  ASSERT_EQ(look(serving_start), Step::move);
  set(0, true);
  set(1, true);
  between_ = false;
  EXPECT_EQ(look(serving_start + seconds(6)), Step::later);
  EXPECT_GT(set_.look_at(), serving_start + seconds(6));
  EXPECT_LE(set_.look_at(), serving_start + seconds(6) + milliseconds(1));
  EXPECT_EQ(set_.rank(), 1);
}

TEST_F(ServingSetTest, GoesBackAtOnceWhenTheShadowFails) {
  fail_primaries();
  ASSERT_EQ(look(serving_start), Step::move);
  set(0, true);
  set(2, false);
  EXPECT_EQ(look(serving_start + milliseconds(1)), Step::move);
  EXPECT_EQ(set_.rank(), 0) << "the primary, not the next shadow";
}

TEST_F(ServingSetTest, StaysWithAShadowOfTheSameFabricUnlessAReturnIsWanted) {
  wanted_ = false;
  fail_primaries();
  ASSERT_EQ(look(serving_start), Step::move);
  set(0, true);
  set(1, true);
  EXPECT_EQ(look(serving_start + seconds(3600)), Step::stay);
  lanes_[2].fallback = true;
  EXPECT_EQ(look(serving_start + seconds(3600)), Step::move) << "a slower one is left";
}

TEST_F(ServingSetTest, WhatIsDetainedGoesBackOnlyWhenNothingElseWorks) {
  fail_primaries();
  ASSERT_EQ(look(serving_start), Step::move);
  set(0, true);
  set(1, true);
  lanes_[2].fallback = true;
  EXPECT_EQ(set_.look({lanes_, true, true, true}, serving_start + seconds(3600)), Step::stay);
  set(2, false);
  EXPECT_EQ(set_.look({lanes_, true, true, true}, serving_start + seconds(3601)), Step::move);
  EXPECT_EQ(set_.rank(), 0);
}

TEST_F(ServingSetTest, ASlowerFabricIsLeftForAShadowOfTheOwnOne) {
  wanted_ = false;
  lanes_[3].fallback = true;
  fail_primaries();
  set(2, false);
  ASSERT_EQ(look(serving_start), Step::move);
  ASSERT_EQ(serving(), (std::vector<unsigned>{3}));
  set(2, true);
  EXPECT_EQ(look(serving_start + seconds(5)), Step::move);
  EXPECT_EQ(serving(), (std::vector<unsigned>{2}));
}

TEST_F(ServingSetTest, GivesWayForWhatItCannotCarry) {
  EXPECT_FALSE(set_.give_way(view(), serving_start)) << "there is nothing better";
  fail_primaries();
  ASSERT_EQ(look(serving_start), Step::move);
  EXPECT_FALSE(set_.give_way(view(), serving_start)) << "nothing better works";
  set(1, true);
  EXPECT_TRUE(set_.give_way(view(), serving_start));
  EXPECT_EQ(serving(), (std::vector<unsigned>{1}));
}

TEST_F(ServingSetTest, ALaneWithoutWeightCarriesNothing) {
  lanes_[0].weight = 0;
  lanes_[1].weight = 3;
  EXPECT_EQ(look(serving_start), Step::stay);
  ASSERT_EQ(set_.shares().size(), 1U);
  EXPECT_EQ(set_.shares().front(), (ServingSet::Share{1, 3}));
  set(1, false);
  EXPECT_EQ(look(serving_start), Step::move) << "as if the other one were not there";
}

/// A port that fails as soon as traffic is back; the time after which it was let back each time.
TEST_F(ServingSetTest, FlappingCostsLessAndLess) {
  set_ = ServingSet(seconds(1));
  Instant now = serving_start;
  for (unsigned round = 0; round <= ServingSet::doublings_max + 3; ++round) {
    fail_primaries();
    ASSERT_EQ(look(now), Step::move);
    const Duration expected = seconds(1) * (1 << std::min(round, ServingSet::doublings_max));
    EXPECT_EQ(set_.after(), expected) << "round " << round;
    const Instant whole = now + milliseconds(300);
    set(0, true, whole);
    set(1, true, whole);
    ASSERT_EQ(look(whole), Step::later);
    EXPECT_EQ(set_.look_at(), whole + expected);
    ASSERT_EQ(look(set_.look_at()), Step::move);
    now = set_.look_at() + milliseconds(10);
  }
}

TEST_F(ServingSetTest, AReturnThatHeldIsTrustedAgain) {
  set_ = ServingSet(seconds(1));
  Instant now = serving_start;
  for (int i = 0; i < 3; ++i) {
    fail_primaries();
    ASSERT_EQ(look(now), Step::move);
    set(0, true, now);
    set(1, true, now);
    now += set_.after();
    ASSERT_EQ(look(now), Step::move);
  }
  EXPECT_EQ(set_.after(), seconds(4));
  now += seconds(4);
  fail_primaries();
  ASSERT_EQ(look(now), Step::move);
  EXPECT_EQ(set_.after(), seconds(1));
}

TEST(Rotation, EqualWeightsTakeTurns) {
  Rotation rotation;
  const std::array<ServingSet::Share, 3> shares{{{4, 1}, {5, 1}, {6, 1}}};
  rotation.begin(shares);
  std::vector<size_t> order;
  for (int i = 0; i < 6; ++i) {
    order.push_back(rotation.next());
  }
  EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2, 0, 1, 2}));
}

TEST(Rotation, UnequalWeightsAreInterleavedAndNotInBursts) {
  Rotation rotation;
  const std::array<ServingSet::Share, 2> shares{{{0, 3}, {1, 1}}};
  rotation.begin(shares);
  std::map<size_t, unsigned> counted;
  unsigned in_a_row = 0;
  for (int i = 0; i < 400; ++i) {
    const size_t turn = rotation.next();
    ++counted[turn];
    in_a_row = turn == 0 ? in_a_row + 1 : 0;
    EXPECT_LE(in_a_row, 3U);
  }
  EXPECT_EQ(counted[0], 300U);
  EXPECT_EQ(counted[1], 100U);
}

TEST(Rotation, LargeWeightsDoNotOverflow) {
  Rotation rotation;
  const std::array<ServingSet::Share, 2> shares{{{0, UINT32_MAX}, {1, 1}}};
  rotation.begin(shares);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(rotation.next(), 0U);
  }
}

}  // namespace
}  // namespace nccl_ha::ha
