#include <gtest/gtest.h>

#include "ha/load_meter.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration meter_least = milliseconds(100);
constexpr Duration meter_most = seconds(1);
constexpr Instant meter_start{seconds(5)};

TEST(LoadMeter, TimeWithoutAnythingPostedDoesNotCount) {
  LoadMeter meter;
  meter.begin(0, meter_start);
  Instant now = meter_start;
  for (int i = 0; i < 10; ++i) {
    meter.on_posted(1'000'000, now);
    now += milliseconds(10);
    meter.on_delivered(1'000'000, now);
    now += milliseconds(90);
  }
  const auto window = meter.take(meter_least, meter_most, {now, {}});
  ASSERT_TRUE(window);
  EXPECT_NEAR(window->rate, 100e6, 1);
  EXPECT_NEAR(window->open, 1e6, 1);
  EXPECT_EQ(window->loaded, milliseconds(100));
  EXPECT_FALSE(meter.take(meter_least, meter_most, {now, {}})) << "the next one begins anew";
}

TEST(LoadMeter, ATimeBeforeTheLastOneCountsAsThat) {
  LoadMeter meter;
  meter.begin(0, meter_start);
  meter.on_posted(1'000'000, meter_start);
  meter.on_delivered(500'000, meter_start + milliseconds(50));
  meter.on_delivered(100'000, meter_start + milliseconds(50) - std::chrono::microseconds(10));
  meter.on_delivered(400'000, meter_start + milliseconds(100));
  const auto window = meter.take(meter_least, meter_most, {meter_start + milliseconds(100), {}});
  ASSERT_TRUE(window);
  EXPECT_EQ(window->loaded, milliseconds(100)) << "no moment counts twice, or is taken off";
  EXPECT_NEAR(window->open, 0.5 * 1e6 + 0.5 * 0.4e6, 1);
}

TEST(LoadMeter, AWindowNeedsADeliveryOrMuchLonger) {
  LoadMeter meter;
  meter.begin(5000, meter_start);
  EXPECT_FALSE(meter.take(meter_least, meter_most, {meter_start + milliseconds(999), {}}));
  const auto window = meter.take(meter_least, meter_most, {meter_start + seconds(1), {}});
  ASSERT_TRUE(window);
  EXPECT_EQ(window->rate, 0);
}

TEST(LoadMeter, TimeInWhichThisProcessDidNotRunTellsNothing) {
  LoadMeter meter;
  meter.begin(5000, meter_start);
  meter.on_delivered(1, meter_start + seconds(1));
  EXPECT_FALSE(meter.take(meter_least, meter_most, {meter_start + seconds(2), milliseconds(1500)}));
  meter.on_delivered(1000, meter_start + milliseconds(2100));
  const auto window =
      meter.take(meter_least, meter_most, {meter_start + milliseconds(2100), milliseconds(1500)});
  ASSERT_TRUE(window);
  EXPECT_EQ(window->loaded, milliseconds(100)) << "what was before makes a path slow";
  EXPECT_DOUBLE_EQ(window->rate, 10'000);
}

TEST(LoadMeter, WhatIsLostIsNotDelivered) {
  LoadMeter meter;
  meter.begin(0, meter_start);
  meter.on_posted(3000, meter_start);
  meter.on_lost(2000, meter_start + milliseconds(50));
  meter.on_delivered(1000, meter_start + milliseconds(100));
  meter.on_posted(10, meter_start + seconds(60));
  EXPECT_FALSE(meter.take(meter_least, meter_most, {meter_start + seconds(60), {}}))
      << "after a long break it begins anew";
  meter.on_delivered(10, meter_start + seconds(61));
  const auto window = meter.take(meter_least, meter_most, {meter_start + seconds(61), {}});
  ASSERT_TRUE(window);
  EXPECT_TRUE(window->after_break);
  EXPECT_NEAR(window->rate, 10, 0.01);
}

}  // namespace
}  // namespace nccl_ha::ha
