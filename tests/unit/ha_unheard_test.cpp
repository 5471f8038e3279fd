#include <gtest/gtest.h>

#include "ha/unheard.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;

Moment unheard_moment(int64_t ms, int64_t lost = 0) {
  return {Instant(milliseconds(1000 + ms)), milliseconds(lost)};
}

TEST(Unheard, ADialThatNothingConfirmsCounts) {
  Unheard unheard;
  unheard.begin(unheard_moment(0));
  EXPECT_EQ(unheard.lasts(false, unheard_moment(700)), milliseconds(700));
}

TEST(Unheard, WhereAllIsConfirmedNothingCounts) {
  Unheard unheard;
  unheard.begin(unheard_moment(0));
  EXPECT_EQ(unheard.lasts(true, unheard_moment(500)), Duration(0));
  EXPECT_EQ(unheard.lasts(false, unheard_moment(600)), milliseconds(100))
      << "from the last look on";
}

/// A stream that was silent for long is not at fault for what is written now.
TEST(Unheard, WhatIsWrittenAfterAllWasConfirmedCountsFromThenOn) {
  Unheard unheard;
  unheard.begin(unheard_moment(0));
  unheard.on_write(true, unheard_moment(900));
  EXPECT_EQ(unheard.lasts(false, unheard_moment(950)), milliseconds(50));
  unheard.on_write(false, unheard_moment(1000));
  EXPECT_EQ(unheard.lasts(false, unheard_moment(1100)), milliseconds(200))
      << "the first still waits";
}

TEST(Unheard, WhatComesFromThePeerShowsThatItHears) {
  Unheard unheard;
  unheard.begin(unheard_moment(0));
  unheard.on_heard(unheard_moment(400));
  EXPECT_EQ(unheard.lasts(false, unheard_moment(450)), milliseconds(50));
}

TEST(Unheard, TimeInWhichThisProcessStoodStillDoesNotCount) {
  Unheard unheard;
  unheard.begin(unheard_moment(0));
  EXPECT_EQ(unheard.lasts(false, unheard_moment(5000, 4900)), milliseconds(100));
}

}  // namespace
}  // namespace nccl_ha::ha
