#include <gtest/gtest.h>

#include "ha/sweep.h"

namespace nccl_ha::ha {
namespace {

constexpr Duration longest = std::chrono::seconds(3);

TEST(Sweep, AFewWaysHaveTheirShareOfTheFirstOneAndManyTheLeast) {
  EXPECT_EQ(Sweep::limit(1, 0, longest), Sweep::attempt_max);
  EXPECT_EQ(Sweep::limit(12, 0, longest) * 12, Sweep::first);
  EXPECT_EQ(Sweep::limit(1000, 0, longest), Sweep::attempt_min);
}

TEST(Sweep, EachFurtherOneGivesMoreButNotMoreThanTheLongest) {
  for (const size_t ways : {1U, 12U, 1000U}) {
    for (unsigned sweep = 1; sweep < 100; ++sweep) {
      const Duration before = Sweep::limit(ways, sweep - 1, longest);
      EXPECT_EQ(Sweep::limit(ways, sweep, longest), std::min(before * Sweep::growth, longest));
    }
    EXPECT_EQ(Sweep::limit(ways, UINT32_MAX, longest), longest);
  }
}

TEST(Sweep, AnAttemptThatMayTakeLessNeverTakesMore) {
  constexpr Duration least = std::chrono::milliseconds(10);
  EXPECT_EQ(Sweep::limit(1, 0, least), least);
}

}  // namespace
}  // namespace nccl_ha::ha
