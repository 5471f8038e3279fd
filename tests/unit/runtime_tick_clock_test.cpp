#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/random.h"
#include "runtime/base/tick_clock.h"

namespace nccl_ha {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A clock and a counter of ticks that a test moves together.
class TickClockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ticks = 1'000'000;
    exact_.set(Instant(seconds(1000)));
  }
  void pass(Duration time, double ticks_per_ns = 2.5) {
    exact_.advance(time);
    ticks += static_cast<uint64_t>(static_cast<double>(time.count()) * ticks_per_ns);
  }
  Duration error() {
    const Duration off = clock_.now() - exact_.now();
    return off < Duration(0) ? -off : off;
  }
  /// Counts how often the clock behind it is read.
  class CountedClock final : public Clock {
   public:
    explicit CountedClock(Clock& source) : source_(source) {}
    Instant now() override {
      ++readings;
      return source_.now();
    }
    size_t readings = 0;

   private:
    Clock& source_;
  };

  static uint64_t ticks;
  ManualClock exact_;
  CountedClock counted_{exact_};
  TickClock clock_{counted_, [] { return ticks; }};
};

uint64_t TickClockTest::ticks = 0;

TEST_F(TickClockTest, FollowsAClockThatItHardlyEverReads) {
  Random random(3);
  for (int i = 0; i < 20; ++i) {  // the rate is measured
    ASSERT_LE(error(), Duration(1));
    pass(milliseconds(1));
  }
  const size_t before = counted_.readings;
  constexpr int asked = 100'000;
  for (int i = 0; i < asked; ++i) {
    pass(Duration(static_cast<int64_t>(random.below(2000))));
    ASSERT_LT(error(), microseconds(1));
  }
  EXPECT_LT(counted_.readings - before, 50U) << "0.1 s passed";
}

TEST_F(TickClockTest, FollowsAClockThatIsSlewed) {
  Duration worst{};
  for (int i = 0; i < 20'000; ++i) {
    pass(microseconds(50), i / 4000 % 2 == 0 ? 2.5 * 1.0005 : 2.5 * 0.9995);
    worst = std::max(worst, error());
  }
  EXPECT_LT(worst, TickClock::error_max);
  EXPECT_GT(worst, microseconds(1)) << "between two readings it cannot know";
}

TEST_F(TickClockTest, TicksThatJumpOrChangeTheirRateAreNotBelieved) {
  for (int i = 0; i < 30; ++i) {
    pass(milliseconds(1));
    ASSERT_LT(error(), microseconds(1));
  }
  ticks -= 900'000;  // another processor's
  pass(TickClock::reading_interval + milliseconds(1));
  EXPECT_EQ(error(), Duration(0));
  for (int i = 0; i < 30; ++i) {
    pass(milliseconds(1));
    ASSERT_LT(error(), microseconds(1));
  }
  ticks += uint64_t{1} << 40;
  EXPECT_EQ(error(), Duration(0));
  for (int i = 0; i < 30; ++i) {
    pass(milliseconds(1), 5);  // the rate is measured anew
    ASSERT_LT(error(), microseconds(1));
  }
}

TEST_F(TickClockTest, AfterAnHourWithoutACallItIsExact) {
  for (int i = 0; i < 30; ++i) {
    pass(milliseconds(1));
    ASSERT_LT(error(), microseconds(1));
  }
  pass(std::chrono::hours(1));
  EXPECT_EQ(error(), Duration(0));
  pass(milliseconds(5));
  EXPECT_LT(error(), microseconds(1));
}

TEST_F(TickClockTest, WithoutTicksTheClockIsReadEachTime) {
  TickClock clock(counted_, [] { return uint64_t{0}; });
  for (int i = 0; i < 100; ++i) {
    exact_.advance(milliseconds(3));
    const size_t before = counted_.readings;
    ASSERT_EQ(clock.now(), exact_.now());
    ASSERT_GT(counted_.readings, before);
  }
}

TEST(TickClockOfTheProcessor, IsNearTheSteadyClock) {
  SteadyClock steady;
  TickClock clock(steady);
  const Instant end = steady.now() + milliseconds(60);
  Instant last{};
  // One reading lies between two others, however long the thread is held up.
  for (Instant before = steady.now(); before < end; before = steady.now()) {
    const Instant now = clock.now();
    const Instant after = steady.now();
    ASSERT_GE(now + TickClock::error_max, before);
    ASSERT_LE(now - TickClock::error_max, after);
    ASSERT_GE(now + TickClock::error_max, last);
    last = now;
  }
}

}  // namespace
}  // namespace nccl_ha
