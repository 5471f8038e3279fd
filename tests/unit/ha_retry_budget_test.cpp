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

TEST(RetryBudget, APathEndsTheNeed) {
  RetryBudget budget(3, seconds(30));
  budget.need(true, budget_start);
  budget.need(false, budget_start + seconds(29));
  EXPECT_EQ(budget.ends(), std::nullopt);
  budget.need(true, budget_start + seconds(40));
  EXPECT_EQ(budget.ends(), budget_start + seconds(70));
}

}  // namespace
}  // namespace nccl_ha::ha
