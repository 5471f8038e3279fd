#include <gtest/gtest.h>

#include "ha/path_health.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using Finding = PathHealth::Finding;

constexpr PathHealth::Limits limits{milliseconds(100), milliseconds(200), seconds(1), seconds(3)};
constexpr PathHealth::Open nothing{};
constexpr PathHealth::Open heartbeat{.writes = 1, .pulses = 1};
constexpr PathHealth::Open work{.writes = 1, .bytes = 4096};

/// A path in use, looked at every `interval`.
struct Watch {
  explicit Watch(Duration interval = milliseconds(10)) : step(interval) { health.begin(moment()); }
  Moment moment() const { return {now, lost}; }
  Finding look(const PathHealth::Open& open) {
    evidence += peer_runs ? 1 : 0;
    const Finding found = health.look(moment(), open, limits, {other_usable, evidence});
    asks += found == Finding::ask ? 1 : 0;
    return found;
  }
  /// The first look that finds the path silent for too long; nothing within `limit`.
  std::optional<Duration> silent_after(const PathHealth::Open& open, Duration limit) {
    for (Duration passed{}; passed <= limit; passed += step) {
      if (look(open) == Finding::silent) {
        return now - health.alive_at();
      }
      now += step;
    }
    return std::nullopt;
  }
  /// Work that is answered after `time`, `times` over.
  void answer(const PathHealth::Open& open, Duration time, int times = 1) {
    for (int i = 0; i < times; ++i) {
      EXPECT_EQ(look(open), Finding::fine);
      now += time;
      health.show_life();
      EXPECT_EQ(look(nothing), Finding::fine);
    }
  }
  PathHealth health;
  Instant now{seconds(1)};
  Duration lost{};
  Duration step;
  bool other_usable = true;
  bool peer_runs = true;  ///< and shows it on other ways
  uint64_t evidence = 0;
  int asks = 0;
};

TEST(PathHealth, WhatDidNotLastIsSteadyAfterThreeAnswersInARow) {
  Watch watch;
  EXPECT_TRUE(watch.health.steady()) << "nothing speaks against it";
  for (int answers = 2; answers >= 0; --answers) {
    for (int i = 0; i < answers; ++i) {
      watch.health.show_life();
    }
    watch.health.begin(watch.moment());
    EXPECT_FALSE(watch.health.steady()) << answers;
  }
  for (int answers = 0; answers < 3; ++answers) {
    EXPECT_FALSE(watch.health.steady()) << answers;
    watch.health.show_life();
  }
  EXPECT_TRUE(watch.health.steady());
  watch.health.begin(watch.moment());
  EXPECT_TRUE(watch.health.steady()) << "the one before lasted";
}

TEST(PathHealth, AnIdlePathIsNeverTooSilent) {
  Watch watch;
  EXPECT_EQ(watch.silent_after(nothing, seconds(100)), std::nullopt);
  EXPECT_FALSE(watch.health.busy(nothing));
}

TEST(PathHealth, AnUnansweredSignOfLifeIsMissedThreeTimes) {
  Watch watch;
  watch.health.on_heartbeat_timer(watch.moment());
  EXPECT_FALSE(watch.health.busy(heartbeat)) << "heartbeats alone need no closer look";
  const auto silent = watch.silent_after(heartbeat, seconds(1));
  ASSERT_TRUE(silent);
  EXPECT_GE(*silent, milliseconds(280));
  EXPECT_LE(*silent, milliseconds(300));
  EXPECT_TRUE(watch.health.busy(heartbeat)) << "from half of that it is looked at often";
}

TEST(PathHealth, AnAnsweredSignOfLifeBeginsAnew) {
  Watch watch;
  for (int i = 0; i < 100; ++i) {
    watch.health.on_heartbeat_timer(watch.moment());
    EXPECT_EQ(watch.silent_after(heartbeat, milliseconds(250)), std::nullopt);
    watch.health.show_life();
    EXPECT_EQ(watch.look(nothing), Finding::fine);
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
    EXPECT_EQ(watch.look(nothing), Finding::fine);
    watch.health.show_life();
    EXPECT_EQ(watch.look(nothing), Finding::fine);
  }
  EXPECT_EQ(watch.health.usual_silence(), Duration(0));
}

TEST(PathHealth, MuchDataMayTakeLongUntilThePathHasProvenItself) {
  constexpr PathHealth::Open large{.writes = 8, .bytes = 4'000'000};
  Watch watch;
  const auto unproven = watch.silent_after(large, seconds(2));
  ASSERT_TRUE(unproven);
  EXPECT_EQ(*unproven, milliseconds(900)) << "100 ms, and 200 ns for each of four million bytes";
  Watch other;  // that was not given up
  other.answer(large, milliseconds(5), 2);
  const auto proven = other.silent_after(large, seconds(2));
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
  watch.health.on_heartbeat_timer(watch.moment());
  EXPECT_TRUE(watch.health.busy(heartbeat));
  const auto silent = watch.silent_after(heartbeat, seconds(1));
  ASSERT_TRUE(silent);
  EXPECT_EQ(*silent, milliseconds(100));
}

TEST(PathHealth, AnAnswerEndsSuspicion) {
  Watch watch;
  watch.health.suspect();
  watch.health.on_heartbeat_timer(watch.moment());
  EXPECT_EQ(watch.look(heartbeat), Finding::fine);
  EXPECT_TRUE(watch.health.suspected());
  watch.health.show_life();
  EXPECT_EQ(watch.look(nothing), Finding::fine);
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
  watch.health.begin(watch.moment());
  EXPECT_FALSE(watch.health.suspected());
  EXPECT_EQ(watch.health.usual_silence(), Duration(0));
  EXPECT_EQ(watch.health.alive_at(), watch.now);
}

TEST(PathHealth, WhatWasGivenUpMayBeSilentForLongerWhenItIsBack) {
  Watch watch;
  watch.answer(work, milliseconds(1), 10);
  Duration before{};
  for (const milliseconds most :
       {milliseconds(100), milliseconds(200), milliseconds(400), milliseconds(800),
        milliseconds(1600), milliseconds(3000), milliseconds(3000)}) {
    watch.health.begin(watch.moment());
    watch.answer(work, milliseconds(1));
    const auto silent = watch.silent_after(work, seconds(4));
    ASSERT_TRUE(silent);
    EXPECT_GE(*silent, before) << "nothing but slow, it would be given up for ever";
    EXPECT_GE(*silent, most * 3 / 4);
    EXPECT_LE(*silent, most + milliseconds(10)) << "three times that of a path without another one";
    before = *silent;
  }
  EXPECT_EQ(watch.health.patience(), limits.unwitnessed) << "however late the verdict was";
  watch.health.begin(watch.moment());
  watch.answer(heartbeat, milliseconds(1), 100);
  EXPECT_GT(watch.health.patience(), milliseconds(2900)) << "nobody knows how long work takes";
  const PathHealth given_up = watch.health;
  watch.answer(work, milliseconds(1), 150);
  EXPECT_LT(watch.health.patience(), milliseconds(100));
  EXPECT_EQ(watch.silent_after(work, seconds(1)), milliseconds(100)) << "it has worked for a while";
  watch.health = given_up;
  watch.answer(heartbeat, milliseconds(200), 120);
  EXPECT_EQ(watch.health.patience(), Duration(0)) << "nor is it held against it for ever";
}

TEST(PathHealth, TheOnlyPathMayBeSilentForLonger) {
  Watch watch;
  watch.other_usable = false;
  watch.answer(work, milliseconds(1), 10);
  EXPECT_EQ(watch.silent_after(work, seconds(5)), seconds(1));
  EXPECT_EQ(watch.asks, 2);
}

TEST(PathHealth, WithoutAWitnessTheVerdictTakesLongerHoweverManyPathsThereAre) {
  for (const bool other : {false, true}) {
    Watch watch;
    watch.other_usable = other;
    watch.peer_runs = false;
    watch.answer(work, milliseconds(1), 10);
    EXPECT_EQ(watch.silent_after(work, seconds(5)), seconds(3));
    EXPECT_FALSE(watch.health.witnessed());
    EXPECT_GE(watch.asks, 3) << "what was asked may have got lost";
  }
}

TEST(PathHealth, WhatCameBeforeThePeerWasAskedIsNoWitness) {
  Watch watch;
  watch.answer(work, milliseconds(1), 10);
  EXPECT_EQ(watch.silent_after(work, milliseconds(30)), std::nullopt);
  watch.peer_runs = false;
  EXPECT_EQ(watch.silent_after(work, milliseconds(2500)), std::nullopt);
}

TEST(PathHealth, APeerThatRunsAgainIsGivenTimeToAnswerThisPathToo) {
  Watch watch;
  watch.answer(work, milliseconds(1), 10);
  watch.peer_runs = false;
  EXPECT_EQ(watch.silent_after(work, milliseconds(1500)), std::nullopt);
  watch.peer_runs = true;
  EXPECT_EQ(watch.look(work), Finding::fine);
  watch.now += watch.step;
  EXPECT_EQ(watch.look(work), Finding::ask) << "once more: it may be about to answer";
  watch.now += watch.step;
  EXPECT_EQ(watch.look(work), Finding::fine) << "and still may";
  EXPECT_TRUE(watch.health.witnessed());
  watch.health.show_life();
  EXPECT_EQ(watch.look(nothing), Finding::fine);
  EXPECT_FALSE(watch.health.witnessed());
}

TEST(PathHealth, APeerThatRunsForAMomentAndThenNotIsNoWitness) {
  Watch watch{milliseconds(1)};
  watch.answer(work, milliseconds(1), 10);
  EXPECT_EQ(watch.silent_after(work, milliseconds(60)), std::nullopt);
  watch.peer_runs = false;
  EXPECT_EQ(watch.silent_after(work, seconds(1)), std::nullopt) << "it may have begun to answer";
  watch.peer_runs = true;
  EXPECT_EQ(watch.look(work), Finding::fine);
  EXPECT_TRUE(watch.health.witnessed());
  watch.now += milliseconds(4);
  EXPECT_EQ(watch.look(work), Finding::fine) << "now it may be about to";
  watch.now += milliseconds(5);
  EXPECT_EQ(watch.look(work), Finding::silent);
  EXPECT_EQ(watch.health.broken(), nullptr) << watch.health.broken();
}

TEST(PathHealth, APeerThatRunsAgainAndDoesNotAnswerThisPathCondemnsIt) {
  Watch watch;
  watch.answer(work, milliseconds(1), 10);
  watch.peer_runs = false;
  EXPECT_EQ(watch.silent_after(work, milliseconds(1500)), std::nullopt);
  const Instant again = watch.now;
  watch.peer_runs = true;
  ASSERT_TRUE(watch.silent_after(work, seconds(1)));
  EXPECT_LE(watch.now - again, milliseconds(30));
}

TEST(PathHealth, TimeInWhichThisProcessDidNotRunIsNotCounted) {
  Watch watch;
  watch.answer(work, milliseconds(1), 10);
  EXPECT_EQ(watch.silent_after(work, milliseconds(80)), std::nullopt);
  watch.now += seconds(10);
  watch.lost += seconds(10);
  EXPECT_EQ(watch.look(work), Finding::fine);
  const auto silent = watch.silent_after(work, seconds(1));
  ASSERT_TRUE(silent);
  EXPECT_EQ(*silent, seconds(10) + milliseconds(100));
  EXPECT_EQ(watch.health.silent_for(watch.moment()), milliseconds(100));
}

TEST(PathHealth, PartsOfALargeWriteKeepASlowPathAlive) {
  constexpr PathHealth::Open large{.writes = 1, .bytes = 400'000'000};
  Watch watch(milliseconds(200));
  watch.other_usable = false;
  for (int i = 0; i < 1000; ++i) {
    watch.health.show_progress();
    watch.health.show_progress();
    EXPECT_EQ(watch.look(large), Finding::fine);
    EXPECT_EQ(watch.health.life(), static_cast<uint64_t>(i + 1)) << "once for each look";
    watch.now += watch.step;
  }
}

TEST(PathHealth, WithoutHeartbeatsAnUnansweredOneHasTheTimeOfWork) {
  constexpr PathHealth::Limits silent{Duration(0), milliseconds(200), seconds(1), seconds(3)};
  PathHealth health;
  Moment now{Instant(seconds(1)), {}};
  health.begin(now);
  health.on_heartbeat_timer(now);
  uint64_t evidence = 0;
  const Instant begin = now.now;
  while (health.look(now, heartbeat, silent, {true, ++evidence}) != Finding::silent) {
    now.now += milliseconds(10);
    ASSERT_LE(now.now - begin, seconds(2));
  }
  EXPECT_EQ(now.now - begin, seconds(1));
}

TEST(PathHealth, TheNextLookIsWhenThePeerWouldBeAsked) {
  Watch watch;
  EXPECT_FALSE(watch.health.next_look(nothing, limits, false));
  watch.health.on_heartbeat_timer(watch.moment());
  EXPECT_EQ(watch.health.next_look(heartbeat, limits, false), watch.now + milliseconds(500));
  EXPECT_LE(*watch.health.next_look(heartbeat, limits, true), watch.now + milliseconds(150));
}

}  // namespace
}  // namespace nccl_ha::ha
