#include <gtest/gtest.h>

#include <set>

#include "ha/replay_window.h"
#include "runtime/base/random.h"

namespace nccl_ha::ha {
namespace {

constexpr int64_t replay_second = 1'000'000'000;
constexpr int64_t replay_begin = 1000 * replay_second;
constexpr ReplayWindow::Limits replay_limits{std::chrono::seconds(5), 4};

TEST(ReplayWindow, ADatagramCountsOnce) {
  ReplayWindow window(replay_limits, replay_begin);
  EXPECT_EQ(window.take(1, 5, replay_begin, replay_begin), ReplayWindow::Verdict::fresh);
  EXPECT_EQ(window.take(1, 5, replay_begin, replay_begin), ReplayWindow::Verdict::repeated);
  EXPECT_EQ(window.take(1, 4, replay_begin, replay_begin), ReplayWindow::Verdict::fresh)
      << "it came late";
  EXPECT_EQ(window.take(1, 4, replay_begin, replay_begin), ReplayWindow::Verdict::repeated);
  EXPECT_EQ(window.take(1, 7, replay_begin, replay_begin), ReplayWindow::Verdict::fresh);
  EXPECT_EQ(window.take(1, 6, replay_begin, replay_begin), ReplayWindow::Verdict::fresh);
  EXPECT_EQ(window.take(2, 5, replay_begin, replay_begin), ReplayWindow::Verdict::fresh)
      << "of somebody else";
}

TEST(ReplayWindow, OldNumbersAndStampsDoNotCount) {
  ReplayWindow window(replay_limits, replay_begin);
  ASSERT_EQ(window.take(1, 5000, replay_begin, replay_begin), ReplayWindow::Verdict::fresh);
  EXPECT_EQ(window.take(1, 5000 - ReplayWindow::numbers, replay_begin, replay_begin),
            ReplayWindow::Verdict::too_old);
  EXPECT_EQ(window.take(1, 5001 - ReplayWindow::numbers, replay_begin, replay_begin),
            ReplayWindow::Verdict::fresh);
  EXPECT_EQ(window.take(1, 5001, replay_begin, replay_begin + 6 * replay_second),
            ReplayWindow::Verdict::too_old);
  EXPECT_EQ(window.take(1, 5002, replay_begin + 6 * replay_second, replay_begin),
            ReplayWindow::Verdict::from_the_future);
  EXPECT_EQ(window.take(1, 5003, INT64_MIN, replay_begin), ReplayWindow::Verdict::too_old);
  EXPECT_EQ(window.take(1, 5003, INT64_MAX, replay_begin), ReplayWindow::Verdict::from_the_future);
  EXPECT_EQ(window.take(1, 5003, replay_begin - 1, replay_begin), ReplayWindow::Verdict::too_old)
      << "what came before this process began, nobody knows";
}

TEST(ReplayWindow, FarJumpsForgetWhatIsBehind) {
  ReplayWindow window(replay_limits, replay_begin);
  ASSERT_EQ(window.take(1, 1, replay_begin, replay_begin), ReplayWindow::Verdict::fresh);
  ASSERT_EQ(window.take(1, UINT64_MAX, replay_begin, replay_begin), ReplayWindow::Verdict::fresh);
  EXPECT_EQ(window.take(1, UINT64_MAX, replay_begin, replay_begin),
            ReplayWindow::Verdict::repeated);
  EXPECT_EQ(window.take(1, 1, replay_begin, replay_begin), ReplayWindow::Verdict::too_old);
  EXPECT_EQ(window.take(1, 0, replay_begin, replay_begin), ReplayWindow::Verdict::too_old);
}

TEST(ReplayWindow, ManySendersDoNotMakeItForget) {
  ReplayWindow window(replay_limits, replay_begin);
  for (uint64_t sender = 0; sender < replay_limits.senders; ++sender) {
    ASSERT_EQ(window.take(sender, 1, replay_begin, replay_begin), ReplayWindow::Verdict::fresh);
  }
  EXPECT_EQ(window.take(99, 1, replay_begin, replay_begin),
            ReplayWindow::Verdict::too_many_senders);
  const int64_t later = replay_begin + 6 * replay_second;
  EXPECT_EQ(window.take(99, 1, later, later), ReplayWindow::Verdict::fresh);
  EXPECT_EQ(window.take(0, 1, replay_begin, later), ReplayWindow::Verdict::too_old);
  EXPECT_LE(window.senders(), replay_limits.senders);
}

// Whatever order they come in, each counts at most once, and what is near the newest does.
TEST(ReplayWindow, AgainstAPlainAccount) {
  Random random(11);
  ReplayWindow window(replay_limits, replay_begin);
  std::set<uint64_t> seen;
  uint64_t newest = 2000;
  ASSERT_EQ(window.take(1, newest, replay_begin, replay_begin), ReplayWindow::Verdict::fresh);
  seen.insert(newest);
  for (int i = 0; i < 100000; ++i) {
    const uint64_t number = newest + 3 - std::min(newest, random.below(1500));
    const bool in_window = number + ReplayWindow::numbers > newest;
    const ReplayWindow::Verdict verdict = window.take(1, number, replay_begin, replay_begin);
    ASSERT_EQ(verdict == ReplayWindow::Verdict::fresh, in_window && !seen.contains(number))
        << number;
    if (verdict == ReplayWindow::Verdict::fresh) {
      seen.insert(number);
      newest = std::max(newest, number);
    }
  }
}

}  // namespace
}  // namespace nccl_ha::ha
