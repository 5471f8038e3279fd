#include <gtest/gtest.h>

#include <array>

#include "ha/stragglers.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Change = Stragglers::Change;

constexpr uint64_t gbit = 125'000'000;

/// Two rails that are looked at every 20 ms and measured as often.
class StragglersTest : public testing::Test {
 protected:
  void begin(const Stragglers::Options& options) { watch = Stragglers(options); }
  void set(size_t rail, double bytes_per_second) {
    rails[rail].ns_per_byte = 1e9 / bytes_per_second;
  }
  /// The changes of the second rail.
  std::vector<Change> run(Duration time, bool measured = true) {
    std::vector<Change> changes;
    for (const Instant end = now + time; now < end; now += milliseconds(20)) {
      for (size_t rail = 0; rail < rails.size(); ++rail) {
        rails[rail].rates_seen += measured ? 1 : 0;
        const Change change = watch.look(rail, rails, now);
        EXPECT_TRUE(rail == 1 || change == Change::none) << "the fast rail is none";
        if (change != Change::none) {
          changes.push_back(change);
        }
      }
    }
    EXPECT_EQ(watch.broken(), nullptr);
    return changes;
  }

  Stragglers watch{Stragglers::Options{}};
  std::array<Stragglers::Seen, 2> rails{{{true, 1, gbit, 0}, {true, 1, gbit, 0}}};
  Instant now{seconds(1)};
};

TEST_F(StragglersTest, ARailIsSlowWhenItStaysFarBehind) {
  set(0, 100e6);
  set(1, 26e6);
  EXPECT_TRUE(run(seconds(10)).empty()) << "not so far behind";
  set(1, 20e6);
  EXPECT_TRUE(run(milliseconds(980)).empty());
  EXPECT_EQ(run(milliseconds(100)), std::vector{Change::slow});
  EXPECT_TRUE(watch.slow(1));
  EXPECT_FALSE(watch.fenced(1)) << "nobody asked for that";
  set(1, 40e6);
  EXPECT_TRUE(run(seconds(10)).empty()) << "between both bounds it stays what it is";
  set(1, 60e6);
  EXPECT_EQ(run(seconds(2)), std::vector{Change::well});
}

TEST_F(StragglersTest, ABreakBeginsAnew) {
  set(0, 100e6);
  for (int i = 0; i < 10; ++i) {
    set(1, 5e6);
    EXPECT_TRUE(run(milliseconds(900)).empty());
    set(1, 90e6);
    EXPECT_TRUE(run(milliseconds(40)).empty());
  }
}

TEST_F(StragglersTest, OneMeasurementSaysNothing) {
  set(0, 100e6);
  set(1, 1e6);
  EXPECT_TRUE(run(seconds(60), false).empty());
}

TEST_F(StragglersTest, SlowerByItsDeviceIsNoStraggler) {
  rails[1].promised = gbit / 10;
  set(0, 100e6);
  set(1, 10e6);
  EXPECT_TRUE(run(seconds(10)).empty());
  rails[1].promised = 0;  // where one is not known, neither counts
  EXPECT_EQ(run(seconds(2)), std::vector{Change::slow});
}

TEST_F(StragglersTest, CongestionOfAllIsNone) {
  set(0, 1e6);
  set(1, 1e6);
  EXPECT_TRUE(run(seconds(10)).empty());
}

TEST_F(StragglersTest, WithNoOtherToCompareItWithNothingIsSlow) {
  rails[0].serves = false;
  set(0, 100e6);
  set(1, 1e6);
  EXPECT_TRUE(run(seconds(10)).empty());
}

TEST_F(StragglersTest, ZeroTurnsItOff) {
  begin({.factor = 0, .fence = true});
  set(0, 100e6);
  set(1, 1e3);
  EXPECT_TRUE(run(seconds(10)).empty());
}

TEST_F(StragglersTest, WhatComesBackTooEarlyWaitsTwiceAsLong) {
  begin({.fence = true, .after = seconds(2)});
  set(0, 100e6);
  set(1, 1e6);
  Duration wait = seconds(2);
  for (int round = 0; round < 9; ++round) {
    EXPECT_EQ(run(milliseconds(1040)), std::vector{Change::slow}) << round;
    ASSERT_TRUE(watch.fenced(1));
    const Instant fenced_at = now;
    EXPECT_NEAR(static_cast<double>((watch.due(1, Instant{}) - fenced_at).count()),
                static_cast<double>(wait.count()), 5e7)
        << round;
    EXPECT_EQ(watch.due(1, now + seconds(100)), now + seconds(100) + wait)
        << "lanes that work only since then";
    now = watch.due(1, Instant{});
    watch.release(1, now);
    EXPECT_FALSE(watch.fenced(1));
    wait = std::min<Duration>(2 * wait, seconds(2 * 64));
  }
  // One that behaved for long begins anew.
  set(1, 100e6);
  run(seconds(300));
  set(1, 1e6);
  run(milliseconds(1040));
  EXPECT_NEAR(static_cast<double>((watch.due(1, Instant{}) - now).count()), 2e9, 5e7);
}

}  // namespace
}  // namespace nccl_ha::ha
