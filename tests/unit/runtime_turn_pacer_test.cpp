#include <gtest/gtest.h>

#include "runtime/engine/turn_pacer.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;

constexpr Instant pacer_start{milliseconds(1000)};
constexpr uint64_t ticks_per_ms = 2'000'000;

/// Turns until the clock is due, at most `limit`.
unsigned turns_until_due(TurnPacer& pacer, unsigned limit, uint64_t ticks = 0) {
  unsigned turns = 1;
  while (!pacer.clock_due(ticks) && turns < limit) {
    ++turns;
  }
  return turns;
}

TEST(TurnPacer, WithoutTicksTurnsAreCounted) {
  TurnPacer pacer(false, milliseconds(5));
  EXPECT_EQ(turns_until_due(pacer, 1000), 16U);
  pacer.on_clock(pacer_start, 0, false);
  EXPECT_EQ(turns_until_due(pacer, 1000), 16U);
  pacer.on_clock(pacer_start, 0, true);
  EXPECT_EQ(turns_until_due(pacer, 1000), TurnPacer::turns_to_see_time);
}

TEST(TurnPacer, WhereNobodyWaitsForSoftwareTheClockIsSoonDueSixteenTurnsAfterALook) {
  TurnPacer pacer(false, milliseconds(5));
  pacer.on_clock(pacer_start, 0, true);
  for (unsigned turn = 0; turn <= 16; ++turn) {
    EXPECT_FALSE(pacer.clock_soon_due(0)) << turn;
    EXPECT_FALSE(pacer.clock_due(0));
  }
  EXPECT_TRUE(pacer.clock_soon_due(0));
  pacer.on_clock(pacer_start, 0, false);
  EXPECT_EQ(turns_until_due(pacer, 1000), 16U);
  EXPECT_FALSE(pacer.clock_soon_due(0)) << "others wait for what the turns find";
}

TEST(TurnPacer, TicksTellHowMuchTimeHasPassedOnceTheirRateIsKnown) {
  TurnPacer pacer(true, milliseconds(5));
  uint64_t ticks = 12345;
  pacer.on_clock(pacer_start, ticks, true);
  EXPECT_EQ(turns_until_due(pacer, 1000, ticks + 100 * ticks_per_ms), 64U) << "not known yet";
  ticks += 10 * ticks_per_ms;
  pacer.on_clock(pacer_start + milliseconds(10), ticks, true);
  // A millisecond where nobody waits, else a fifth.
  EXPECT_EQ(turns_until_due(pacer, 100, ticks + ticks_per_ms - 1000), 100U);
  EXPECT_TRUE(pacer.clock_due(ticks + ticks_per_ms + 1000));
  EXPECT_FALSE(pacer.clock_soon_due(ticks + ticks_per_ms / 2 - 1000));
  EXPECT_TRUE(pacer.clock_soon_due(ticks + ticks_per_ms / 2 + 1000));
  pacer.on_clock(pacer_start + milliseconds(11), ticks, false);
  EXPECT_FALSE(pacer.clock_due(ticks + ticks_per_ms / 5 - 1000));
  EXPECT_TRUE(pacer.clock_due(ticks + ticks_per_ms / 5 + 1000));
  EXPECT_EQ(turns_until_due(pacer, 1000, ticks), 254U) << "should they stop";
}

TEST(TurnPacer, ACountThatJumpedIsNoRate) {
  TurnPacer pacer(true, milliseconds(5));
  pacer.on_clock(pacer_start, 0, false);
  pacer.on_clock(pacer_start + milliseconds(10), 1000 * ticks_per_ms, false);
  EXPECT_EQ(turns_until_due(pacer, 1000, 1'000'000 * ticks_per_ms), 16U);
}

TEST(TurnPacer, TimersAndStreamsHavePeriodsOfTheirOwn) {
  TurnPacer pacer(false, milliseconds(5));
  EXPECT_TRUE(pacer.take_timers_due(pacer_start, true));
  EXPECT_TRUE(pacer.take_streams_due(pacer_start));
  EXPECT_FALSE(pacer.take_timers_due(pacer_start + std::chrono::microseconds(999), true));
  EXPECT_TRUE(pacer.take_timers_due(pacer_start + milliseconds(1), false));
  EXPECT_TRUE(pacer.take_timers_due(pacer_start + std::chrono::microseconds(1200), false));
  EXPECT_FALSE(pacer.take_streams_due(pacer_start + milliseconds(4)));
  EXPECT_TRUE(pacer.take_streams_due(pacer_start + milliseconds(5)));
}

TEST(TurnPacer, WhatIsAskedForIsTheMostOfAll) {
  TurnPacer pacer(false, milliseconds(5));
  EXPECT_FALSE(pacer.take_stream_turn());
  pacer.want_stream_turns(3);
  pacer.want_stream_turns(1);
  unsigned turns = 0;
  while (pacer.take_stream_turn()) {
    ++turns;
  }
  EXPECT_EQ(turns, 3U);
  EXPECT_FALSE(pacer.wants_stream_turn());
}

TEST(TurnPacer, FullTurnsLookAtStreamsWhenAskedAndEverySixtyFourth) {
  TurnPacer pacer(false, milliseconds(5));
  const auto turns_to_look = [&] {
    unsigned turns = 1;
    while (!pacer.take_full_turn_streams_due()) {
      ++turns;
    }
    return turns;
  };
  EXPECT_EQ(turns_to_look(), 64U);
  pacer.want_stream_turns(2);
  EXPECT_EQ(turns_to_look(), 1U);
  EXPECT_EQ(turns_to_look(), 1U);
  EXPECT_EQ(turns_to_look(), 64U);
}

}  // namespace
}  // namespace nccl_ha
