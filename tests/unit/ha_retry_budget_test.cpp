#include <gtest/gtest.h>

#include "ha/retry_budget.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::seconds;

constexpr Instant budget_start{seconds(100)};

TEST(RetryBudget, FailuresForNothingAreCountedInARow) {
  RetryBudget budget(3, seconds(30));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(budget.on_failed(false, true));
  }
  EXPECT_EQ(budget.failures(), 3U);
  EXPECT_FALSE(budget.on_failed(false, true));
}

TEST(RetryBudget, APathThatCarriedSomethingBeginsTheCountAnew) {
  RetryBudget budget(3, seconds(30));
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(budget.on_failed(i % 4 == 3, true)) << i;
  }
}

TEST(RetryBudget, APathThatNobodyNeededHasFailedNobody) {
  RetryBudget budget(3, seconds(30));
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(budget.on_failed(false, false));
  }
  EXPECT_EQ(budget.failures(), 0U);
}

TEST(RetryBudget, TheTimeWithoutAPathIsLimited) {
  RetryBudget budget(3, seconds(30));
  EXPECT_EQ(budget.ends(), std::nullopt);
  budget.need(true, budget_start);
  EXPECT_EQ(budget.ends(), budget_start + seconds(30));
  budget.need(true, budget_start + seconds(20));
  EXPECT_EQ(budget.ends(), budget_start + seconds(30))
      << "it began with the first path that was missed";
}

TEST(RetryBudget, ItsEndMovesWhileThereIsOneAndWhatIsLeftWithIt) {
  RetryBudget budget(3, seconds(30));
  budget.move_end(budget_start);
  EXPECT_EQ(budget.ends(), std::nullopt);
  budget.need(true, budget_start);
  budget.move_end(budget_start + seconds(80));  // it stood still for 50 s
  EXPECT_EQ(budget.ends(), budget_start + seconds(80));
  budget.need(false, budget_start + seconds(70));
  budget.resume();
  budget.need(true, budget_start + seconds(71));
  EXPECT_EQ(budget.ends(), budget_start + seconds(81)) << "ten were left";
  EXPECT_EQ(budget.broken(), nullptr);
}

TEST(RetryBudget, APathEndsTheNeed) {
  RetryBudget budget(3, seconds(30));
  budget.need(true, budget_start);
  budget.need(false, budget_start + seconds(29));
  EXPECT_EQ(budget.ends(), std::nullopt);
  budget.need(true, budget_start + seconds(40));
  EXPECT_EQ(budget.ends(), budget_start + seconds(70));
}

TEST(RetryBudget, APathThatWasOfNoUseDoesNotBeginTheTimeAnew) {
  RetryBudget budget(3, seconds(30));
  budget.need(true, budget_start);
  for (int i = 1; i <= 29; ++i) {
    budget.need(false, budget_start + seconds(i));
    budget.resume();
    budget.need(true, budget_start + seconds(i));
    EXPECT_EQ(budget.ends(), budget_start + seconds(30)) << i;
  }
  // While it was there the time stood still.
  budget.need(false, budget_start + seconds(29));
  budget.resume();
  budget.need(true, budget_start + seconds(34));
  EXPECT_EQ(budget.ends(), budget_start + seconds(35));
}

TEST(RetryBudget, WhatWasServedBetweenBeginsTheTimeAnew) {
  RetryBudget budget(3, seconds(30));
  budget.need(true, budget_start);
  budget.need(false, budget_start + seconds(20));
  budget.served();
  budget.resume();
  budget.need(true, budget_start + seconds(21));
  EXPECT_EQ(budget.ends(), budget_start + seconds(51));
}

TEST(RetryBudget, ANeedThatEndedLongAgoDoesNotGoOn) {
  RetryBudget budget(3, seconds(30));
  budget.need(true, budget_start);
  budget.need(false, budget_start + seconds(20));
  budget.resume();
  budget.need(true, budget_start + seconds(3600));
  EXPECT_EQ(budget.ends(), budget_start + seconds(3630));
  // Without a word about the path it was of use.
  budget.need(false, budget_start + seconds(3601));
  budget.need(true, budget_start + seconds(3602));
  EXPECT_EQ(budget.ends(), budget_start + seconds(3632));
}

}  // namespace
}  // namespace nccl_ha::ha
