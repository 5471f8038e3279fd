#include <gtest/gtest.h>

#include <deque>
#include <functional>

#include "ha/windowed_best.h"
#include "runtime/base/random.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Highest = WindowedBest<int, std::greater<>>;

constexpr Instant zero{std::chrono::seconds(1)};

TEST(WindowedBest, IsEmptyUntilSomethingCame) {
  Highest best(milliseconds(8));
  EXPECT_TRUE(best.empty());
  best.add(zero, -5);
  EXPECT_EQ(best.best(), -5);
  best.reset();
  EXPECT_TRUE(best.empty());
}

TEST(WindowedBest, ForgetsWhatIsOutOfDate) {
  Highest best(milliseconds(8));
  best.add(zero, 100);
  best.add(zero + milliseconds(5), 10);
  EXPECT_EQ(best.best(), 100);
  best.add(zero + milliseconds(9), 10);
  EXPECT_EQ(best.best(), 10);
  best.add(zero + milliseconds(100), 3);
  EXPECT_EQ(best.best(), 3);
}

/// Never better than all of the window has, never worse than three fourths of it.
TEST(WindowedBest, LiesBetweenTheBestOfTheWindowAndOfThreeFourths) {
  Random random(4);
  Highest best(milliseconds(8));
  std::deque<std::pair<Instant, int>> all;
  Instant now = zero;
  for (int i = 0; i < 20000; ++i) {
    now += microseconds(random.below(random.chance(0.01) ? 20000 : 400));
    const auto value = static_cast<int>(random.below(1000));
    best.add(now, value);
    all.emplace_back(now, value);
    int most = value;
    int least = value;
    for (const auto& [at, one] : all) {
      most = now - at <= milliseconds(8) ? std::max(most, one) : most;
      least = now - at < milliseconds(6) ? std::max(least, one) : least;
    }
    ASSERT_LE(best.best(), most);
    ASSERT_GE(best.best(), least);
    while (now - all.front().first > milliseconds(8)) {
      all.pop_front();
    }
  }
}

}  // namespace
}  // namespace nccl_ha::ha
