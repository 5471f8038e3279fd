#include <gtest/gtest.h>

#include "ha/path_health.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr PathHealth::Limits limits{milliseconds(100), milliseconds(200)};
constexpr PathHealth::Open nothing{};
constexpr PathHealth::Open pulse{.writes = 1, .pulses = 1};
constexpr PathHealth::Open work{.writes = 1, .bytes = 4096};

/// A path in use, looked at every `interval`.
struct Watch {
  explicit Watch(Duration interval = milliseconds(10)) : step(interval) { health.begin(now); }
  /// The first look that finds the path silent for too long; nothing within `limit`.
  std::optional<Duration> silent_after(const PathHealth::Open& open, Duration limit) {
    for (Duration passed{}; passed <= limit; passed += step) {
      if (health.look(now, open, limits)) {
        return now - health.alive_at();
      }
      now += step;
    }
    return std::nullopt;
  }
  /// Work that is answered after `time`, `times` over.
  void answer(const PathHealth::Open& open, Duration time, int times = 1) {
    for (int i = 0; i < times; ++i) {
      EXPECT_FALSE(health.look(now, open, limits));
      now += time;
      health.show_life();
      EXPECT_FALSE(health.look(now, nothing, limits));
    }
  }
  PathHealth health;
  Instant now{seconds(1)};
  Duration step;
};

TEST(PathHealth, AnIdlePathIsNeverTooSilent) {
  Watch watch;
  EXPECT_EQ(watch.silent_after(nothing, seconds(100)), std::nullopt);
  EXPECT_FALSE(watch.health.busy(nothing));
}

TEST(PathHealth, AnUnansweredSignOfLifeIsMissedThreeTimes) {
  Watch watch;
  watch.health.on_pulse(watch.now);
  const auto silent = watch.silent_after(pulse, seconds(1));
  ASSERT_TRUE(silent);
  EXPECT_GE(*silent, milliseconds(280));
  EXPECT_LE(*silent, milliseconds(300));
  EXPECT_FALSE(watch.health.busy(pulse)) << "signs of life alone need no closer look";
}

TEST(PathHealth, AnAnsweredSignOfLifeBeginsAnew) {
  Watch watch;
  for (int i = 0; i < 100; ++i) {
    watch.health.on_pulse(watch.now);
    EXPECT_EQ(watch.silent_after(pulse, milliseconds(250)), std::nullopt);
    watch.health.show_life();
    EXPECT_FALSE(watch.health.look(watch.now, nothing, limits));
  }
}

TEST(PathHealth, UnansweredWorkIsNoticedSooner) {
  Watch watch;
  watch.answer(work, milliseconds(1), 10);
  const auto silent = watch.silent_after(work, seconds(1));
  ASSERT_TRUE(silent);
  EXPECT_EQ(*silent, milliseconds(100)) << "half the soft timeout, as work usually takes 1 ms";
  EXPECT_TRUE(watch.health.busy(work));
}

TEST(PathHealth, WhatIsUsualOnASlowPathIsAllowed) {
  Watch watch;
  watch.answer(work, milliseconds(40), 10);
  EXPECT_EQ(watch.health.usual_silence(), milliseconds(40));
  const auto silent = watch.silent_after(work, seconds(1));
  ASSERT_TRUE(silent);
  EXPECT_EQ(*silent, milliseconds(160)) << "four times what is usual";
}

TEST(PathHealth, WhatIsUsualNeverExceedsTheSoftTimeout) {
  Watch watch;
  watch.answer(work, milliseconds(90), 10);
  const auto silent = watch.silent_after(work, seconds(1));
  ASSERT_TRUE(silent);
  EXPECT_EQ(*silent, milliseconds(200));
}

TEST(PathHealth, WhatIsUsualIsForgotten) {
  Watch watch;
  watch.answer(work, milliseconds(90));
  watch.answer(work, milliseconds(1), 200);
  EXPECT_LT(watch.health.usual_silence(), milliseconds(2));
}

TEST(PathHealth, WaitingForNothingTeachesNothing) {
  Watch watch;
  for (int i = 0; i < 10; ++i) {
    watch.now += seconds(1);
    EXPECT_FALSE(watch.health.look(watch.now, nothing, limits));
    watch.health.show_life();
    EXPECT_FALSE(watch.health.look(watch.now, nothing, limits));
  }
  EXPECT_EQ(watch.health.usual_silence(), Duration(0));
}

TEST(PathHealth, MuchDataMayTakeLongUntilThePathHasProvenItself) {
  constexpr PathHealth::Open large{.writes = 8, .bytes = 4'000'000};
  Watch watch;
  const auto unproven = watch.silent_after(large, seconds(2));
  ASSERT_TRUE(unproven);
  EXPECT_EQ(*unproven, milliseconds(900)) << "100 ms, and 200 ns for each of four million bytes";
  watch.health.begin(watch.now);
  watch.answer(large, milliseconds(5), 2);
  const auto proven = watch.silent_after(large, seconds(2));
  ASSERT_TRUE(proven);
  EXPECT_EQ(*proven, milliseconds(100));
}

TEST(PathHealth, DataThatTookLongProvesNothing) {
  constexpr PathHealth::Open large{.writes = 8, .bytes = 4'000'000};
  Watch watch;
  watch.answer(large, milliseconds(150));
  const auto silent = watch.silent_after(large, seconds(2));
  ASSERT_TRUE(silent);
  EXPECT_GT(*silent, milliseconds(900));
}

TEST(PathHealth, ASuspectOwesAnAnswerToASignOfLife) {
  Watch watch;
  watch.health.suspect();
  watch.health.on_pulse(watch.now);
  EXPECT_TRUE(watch.health.busy(pulse));
  const auto silent = watch.silent_after(pulse, seconds(1));
  ASSERT_TRUE(silent);
  EXPECT_EQ(*silent, milliseconds(100));
}

TEST(PathHealth, AnAnswerEndsSuspicion) {
  Watch watch;
  watch.health.suspect();
  watch.health.on_pulse(watch.now);
  EXPECT_FALSE(watch.health.look(watch.now, pulse, limits));
  EXPECT_TRUE(watch.health.suspected());
  watch.health.show_life();
  EXPECT_FALSE(watch.health.look(watch.now, nothing, limits));
  EXPECT_FALSE(watch.health.suspected());
}

TEST(PathHealth, AnUnseenWriteIsAskedAfterOnce) {
  Watch watch;
  EXPECT_FALSE(watch.health.take_unanswered());
  watch.health.announce();
  EXPECT_TRUE(watch.health.busy(nothing));
  EXPECT_TRUE(watch.health.take_unanswered());
  EXPECT_TRUE(watch.health.suspected());
  EXPECT_FALSE(watch.health.take_unanswered());
}

TEST(PathHealth, AnUnseenWriteThatWasFollowedByDataIsNotAskedAfter) {
  Watch watch;
  watch.health.announce();
  watch.health.show_life();
  EXPECT_FALSE(watch.health.take_unanswered());
  EXPECT_FALSE(watch.health.suspected());
}

TEST(PathHealth, ANewPathBeginsWithoutTheOldOnesSilence) {
  Watch watch;
  watch.answer(work, milliseconds(90), 3);
  watch.health.suspect();
  watch.now += seconds(10);
  watch.health.begin(watch.now);
  EXPECT_FALSE(watch.health.suspected());
  EXPECT_EQ(watch.health.usual_silence(), Duration(0));
  EXPECT_EQ(watch.health.alive_at(), watch.now);
}

}  // namespace
}  // namespace nccl_ha::ha
