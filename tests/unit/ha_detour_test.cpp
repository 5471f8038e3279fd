#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "ha/detour.h"
#include "runtime/base/random.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Step = Detour::Step;

/// Two ranks that deliver what they are set to; so much is always under way, or nothing.
struct TwoRanks {
  void begin(const Detour::Options& options) {
    after = options.after;
    detour = Detour(options);
    meter.begin(open, now);
  }
  void move(uint8_t to) {
    rank = to;
    ++moves;
    moved_at = now;
    meter.begin(open, now);
  }
  void turn() {
    now += milliseconds(20);
    const auto bytes = static_cast<uint64_t>(rates[rank] * 0.02);
    if (open != 0) {
      meter.on_delivered(std::min(bytes, open), now);
      meter.on_posted(std::min(bytes, open), now);
    }
    const std::optional<uint8_t> other =
        works[1 - rank] ? std::optional<uint8_t>(static_cast<uint8_t>(1 - rank)) : std::nullopt;
    const Step step = detour.look({rank, other, promised}, meter, {now, {}});
    if (step == Step::leave || step == Step::back) {
      leaves += step == Step::leave ? 1 : 0;
      vain += step == Step::back ? 1 : 0;
      ASSERT_TRUE(other);
      move(*other);
    } else if (step == Step::kept) {
      ++kept;
    }
    if (failback && rank == 1 && works[0] && !detour.detains(now) && now - moved_at >= after) {
      ++returns;
      move(0);
    }
    ASSERT_EQ(detour.broken(), nullptr);
  }
  void run(Duration time) {
    for (const Instant end = now + time; now < end;) {
      ASSERT_NO_FATAL_FAILURE(turn());
    }
  }

  std::array<double, 2> rates{100e6, 100e6};
  std::array<bool, 2> works{true, true};
  uint64_t open = 4 << 20;
  uint64_t promised = 0;
  bool failback = false;
  Duration after{};
  Detour detour;
  LoadMeter meter;
  Instant now{seconds(100)};
  Instant moved_at{};
  uint8_t rank = 0;
  unsigned moves = 0;
  unsigned leaves = 0;
  unsigned vain = 0;
  unsigned kept = 0;
  unsigned returns = 0;
};
class DetourTest : public testing::Test, protected TwoRanks {};

TEST_F(DetourTest, ASlowRankIsLeftForOneThatIsFaster) {
  for (const double times : {10.0, 100.0}) {
    static_cast<TwoRanks&>(*this) = {};
    begin({.factor = 8});
    run(seconds(2));
    rates[0] /= times;
    run(milliseconds(900));
    EXPECT_EQ(moves, 0U) << "not at once";
    for (const Instant end = now + milliseconds(400); now < end && leaves == 0;) {
      ASSERT_NO_FATAL_FAILURE(turn());
    }
    EXPECT_EQ(leaves, 1U);
    EXPECT_NEAR(detour.rates().other, 100e6, 10e6);
    EXPECT_NEAR(detour.rates().here, 100e6 / times, 10e6 / times);
    run(seconds(600));
    EXPECT_EQ(kept, 1U);
    EXPECT_EQ(moves, 1U) << "it stays there";
    EXPECT_EQ(rank, 1);
  }
}

TEST_F(DetourTest, ALittleSlowerIsNotSlow) {
  begin({.factor = 8});
  run(seconds(2));
  rates[0] /= 7;
  run(seconds(600));
  EXPECT_EQ(moves, 0U);
}

TEST_F(DetourTest, ABreakOfSlownessBeginsAnew) {
  begin({.factor = 8});
  run(seconds(2));
  for (int i = 0; i < 20; ++i) {
    rates[0] = 5e6;
    run(milliseconds(800));
    rates[0] = 90e6;
    run(milliseconds(300));
  }
  EXPECT_EQ(moves, 0U);
}

TEST_F(DetourTest, RanksThatAreBothSlowAreTriedMoreAndMoreRarely) {
  begin({.factor = 8});
  run(seconds(2));
  rates = {5e6, 5e6};
  run(seconds(300));
  EXPECT_GE(leaves, 2U);
  EXPECT_LE(leaves, 1 + std::log2(300.0 / 5)) << "each wait is twice the one before";
  EXPECT_EQ(vain, leaves) << "each time it went back";
  EXPECT_EQ(rank, 0);
  EXPECT_EQ(kept, 0U);
  // The wait is bounded, so that a standby that becomes fast is found.
  rates[1] = 100e6;
  run(seconds(700));
  EXPECT_EQ(rank, 1);
}

TEST_F(DetourTest, AStandbyWhoseDevicePromisesNoMoreIsNotTried) {
  promised = 40'000'000;
  begin({.factor = 8});
  run(seconds(2));
  rates[0] = 10e6;
  run(seconds(600));
  EXPECT_EQ(moves, 0U) << "ten times less than before, and a quarter of that promise";
  rates[0] = 4e6;
  run(seconds(3));
  EXPECT_EQ(leaves, 1U);
}

TEST_F(DetourTest, WithoutAStandbyNothingHappens) {
  works[1] = false;
  begin({.factor = 8});
  run(seconds(2));
  rates[0] = 1e6;
  run(seconds(60));
  EXPECT_EQ(moves, 0U);
  works[1] = true;
  run(seconds(1));
  EXPECT_EQ(rank, 1) << "it was known to be slow";
}

TEST_F(DetourTest, LittleTrafficStaysWhereItIs) {
  begin({.factor = 8});
  run(seconds(2));
  open = 20'000;
  meter.begin(open, now);
  rates[0] = 10e3;
  run(seconds(600));
  EXPECT_EQ(moves, 0U);
}

TEST_F(DetourTest, LessUnderWayIsNoSlowness) {
  begin({.factor = 8});
  run(seconds(2));
  open = 100'000;  // a fortieth; latency limits it
  meter.begin(open, now);
  rates[0] = 100e6 / 40;
  run(seconds(600));
  EXPECT_EQ(moves, 0U);
}

TEST_F(DetourTest, WhoSendsNothingAndWhoWasNeverFastStays) {
  begin({.factor = 8});
  rates = {1e6, 100e6};
  run(seconds(60));
  EXPECT_EQ(moves, 0U) << "it was never faster";
  rates[0] = 100e6;
  run(seconds(2));
  open = 0;
  meter.begin(open, now);
  run(seconds(600));
  EXPECT_EQ(moves, 0U);
}

TEST_F(DetourTest, ZeroTurnsItOff) {
  begin({.factor = 0});
  run(seconds(2));
  rates[0] = 1e6;
  run(seconds(60));
  EXPECT_EQ(moves, 0U);
  EXPECT_FALSE(detour.detains(now));
}

TEST_F(DetourTest, APrimaryThatIsFastAgainIsGoneBackToOnce) {
  failback = true;
  begin({.factor = 8});
  run(seconds(2));
  rates[0] = 1e6;
  run(seconds(3));
  ASSERT_EQ(rank, 1);
  rates[0] = 100e6;
  run(seconds(600));
  EXPECT_EQ(rank, 0);
  EXPECT_EQ(returns, 1U);
  EXPECT_EQ(moves, 2U);
}

TEST_F(DetourTest, ReturnsToWhatIsStillSlowAreShortAndRare) {
  failback = true;
  begin({.factor = 8});
  run(seconds(2));
  rates[0] = 1e6;
  run(seconds(3));
  Duration slow{};
  for (const Instant end = now + seconds(300); now < end;) {
    const Instant before = now;
    ASSERT_NO_FATAL_FAILURE(turn());
    slow += rank == 0 ? now - before : Duration(0);
  }
  EXPECT_GE(returns, 2U);
  EXPECT_LE(returns, 1 + std::log2(300.0 / 5));
  EXPECT_EQ(vain, returns);
  EXPECT_LE(slow, returns * milliseconds(500));
  EXPECT_EQ(rank, 1);
}

TEST_F(DetourTest, AReturnThatCannotPayIsNotTried) {
  failback = true;
  begin({.factor = 8});
  rates = {100e6, 200e6};
  run(seconds(2));
  rates[0] = 1e6;
  run(seconds(600));
  EXPECT_EQ(moves, 1U) << "the better rank never delivered so much";
}

TEST_F(DetourTest, OthersAreLaterByTheSpread) {
  begin({.factor = 8, .spread = 1});
  run(seconds(2));
  rates[0] = 5e6;
  run(milliseconds(1900));
  EXPECT_EQ(moves, 0U);
  run(milliseconds(300));
  EXPECT_EQ(moves, 1U);
}

/// Whatever both ranks do: trials are rare, and each has one way there and one back at most.
TEST_F(DetourTest, RandomSpeedsNeverMakeItOscillate) {
  uint64_t all = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    static_cast<TwoRanks&>(*this) = {};
    Random random(seed);
    failback = random.chance(0.5);
    begin({.factor = 8, .spread = random.unit()});
    run(seconds(2));
    const Instant start = now;
    while (now - start < seconds(600)) {
      for (double& rate : rates) {
        rate = 1e6 * std::pow(10, 2 * random.unit());
      }
      run(milliseconds(random.below(30'000)));
    }
    // Changes of speed in time may make a trial worth it again, at most every `after`; without a
    // pause of four waits the wait doubles.
    EXPECT_LE(leaves + returns, 40U) << "seed " << seed;
    EXPECT_LE(moves, 2 * (leaves + returns)) << "seed " << seed;
    all += leaves;
  }
  EXPECT_GT(all, 0U) << "no rank was ever left";
}

}  // namespace
}  // namespace nccl_ha::ha
