#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/engine/timer_wheel.h"

namespace nccl_ha {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Alarm {
  Alarm() {
    timer.bind([](void* self) { static_cast<Alarm*>(self)->ring(); }, this);
  }
  void ring() {
    ++rings;
    if (log != nullptr) {
      log->push_back(id);
    }
    if (rearm.count() != 0) {
      wheel->arm(timer, *now + rearm);
    }
  }
  Timer timer;
  int id = 0;
  int rings = 0;
  std::vector<int>* log = nullptr;
  TimerWheel* wheel = nullptr;
  const Instant* now = nullptr;
  Duration rearm{};
};

const Instant start{seconds(1000)};

TEST(TimerWheel, NeverEarlyAndAtMostOneTickLate) {
  // Random deadlines from microseconds to hours, against the definition.
  Random random(11);
  TimerWheel wheel(start);
  Instant now = start;
  std::vector<std::unique_ptr<Alarm>> alarms;
  for (int i = 0; i < 500; ++i) {
    alarms.push_back(std::make_unique<Alarm>());
    const auto spread = static_cast<int64_t>(1) << (10 + random.below(34));
    wheel.arm(alarms.back()->timer,
              start + Duration(static_cast<int64_t>(random.below(static_cast<uint64_t>(spread)))));
  }
  std::vector<Instant> deadlines;
  for (const auto& alarm : alarms) {
    deadlines.push_back(alarm->timer.deadline());
  }
  while (wheel.size() != 0) {
    const auto next = wheel.next_deadline();
    ASSERT_TRUE(next);
    for (size_t i = 0; i < alarms.size(); ++i) {
      ASSERT_TRUE(alarms[i]->rings != 0 || *next <= deadlines[i] + TimerWheel::tick)
          << "the wheel would sleep past alarm " << i << ", seed 11";
    }
    now = std::max(now + Duration(1), *next);
    if (random.chance(0.3)) {
      now += Duration(static_cast<int64_t>(random.below(1 << 22)));
    }
    wheel.expire(now);
    for (size_t i = 0; i < alarms.size(); ++i) {
      if (alarms[i]->rings != 0) {
        ASSERT_LE(deadlines[i], now) << "early, seed 11, alarm " << i;
      } else {
        ASSERT_GT(deadlines[i] + TimerWheel::tick, now) << "late, seed 11, alarm " << i;
      }
    }
  }
  for (const auto& alarm : alarms) {
    EXPECT_EQ(alarm->rings, 1);
  }
}

TEST(TimerWheel, TheEndOfTheTopLevelsRoundDelaysNothing) {
  // Every 2^24 ticks (275 s) all levels begin anew.  Whatever is armed before and due after must
  // come in time: an acknowledgement as well as a handshake's deadline.
  const Instant boundary(TimerWheel::tick * (int64_t{1} << 24) * 30);
  for (const Duration before : {Duration(microseconds(20)), Duration(milliseconds(3)),
                                Duration(seconds(1)), Duration(seconds(200))}) {
    for (const Duration after :
         {Duration(microseconds(20)), Duration(milliseconds(50)), Duration(seconds(5)),
          Duration(seconds(60)), Duration(seconds(500))}) {
      TimerWheel wheel(boundary - before);
      Alarm alarm;
      const Instant due = boundary + after;
      wheel.arm(alarm.timer, due);
      Instant now = boundary - before;
      while (alarm.rings == 0) {
        const auto next = wheel.next_deadline();
        ASSERT_TRUE(next);
        ASSERT_LE(*next, due + TimerWheel::tick)
            << before.count() << " ns before, due " << after.count() << " ns after";
        now = std::max(now + Duration(1), *next);
        wheel.expire(now);
      }
      EXPECT_GE(now, due);
    }
  }
}

TEST(TimerWheel, NextDeadlineIsNeverLaterThanTheFirstTimerByMoreThanATick) {
  TimerWheel wheel(start);
  EXPECT_FALSE(wheel.next_deadline());
  Alarm alarm;
  for (const Duration in : {Duration(1), Duration(microseconds(100)), Duration(milliseconds(7)),
                            Duration(seconds(3)), Duration(seconds(100000))}) {
    wheel.arm(alarm.timer, start + in);
    ASSERT_TRUE(wheel.next_deadline());
    EXPECT_LE(*wheel.next_deadline(), start + in + TimerWheel::tick);
    wheel.cancel(alarm.timer);
  }
  EXPECT_FALSE(wheel.next_deadline());
}

TEST(TimerWheel, WhoeverSleepsUntilTheNextDeadlineWakesOnceForATimer) {
  for (const Duration in : {Duration(microseconds(100)), Duration(milliseconds(7)),
                            Duration(milliseconds(333)), Duration(seconds(3))}) {
    TimerWheel wheel(start);
    Alarm alarm;
    Alarm later;
    wheel.arm(later.timer, start + in + milliseconds(1));
    wheel.arm(alarm.timer, start + in);
    wheel.expire(*wheel.next_deadline());
    EXPECT_EQ(alarm.rings, 1) << in.count() << " ns";
    EXPECT_EQ(later.rings, 0);
    wheel.cancel(later.timer);
  }
}

TEST(TimerWheel, TiesFireInArmingOrderAcrossLevels) {
  TimerWheel wheel(start);
  std::vector<int> log;
  std::vector<std::unique_ptr<Alarm>> alarms;
  const Instant due = start + seconds(2);
  for (int i = 0; i < 5; ++i) {
    alarms.push_back(std::make_unique<Alarm>());
    alarms.back()->id = i;
    alarms.back()->log = &log;
  }
  for (int i = 0; i < 3; ++i) {
    wheel.arm(alarms[static_cast<size_t>(i)]->timer, due);  // far away: an upper level
  }
  wheel.expire(due - milliseconds(1));
  for (int i = 3; i < 5; ++i) {
    wheel.arm(alarms[static_cast<size_t>(i)]->timer, due);  // close: the lowest level
  }
  wheel.expire(due + milliseconds(1));
  EXPECT_EQ(log, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(TimerWheel, CancelAndRearm) {
  TimerWheel wheel(start);
  Alarm alarm;
  wheel.arm(alarm.timer, start + milliseconds(1));
  wheel.cancel(alarm.timer);
  wheel.expire(start + milliseconds(10));
  EXPECT_EQ(alarm.rings, 0);
  wheel.arm(alarm.timer, start + milliseconds(20));
  wheel.arm(alarm.timer, start + milliseconds(40));
  wheel.expire(start + milliseconds(30));
  EXPECT_EQ(alarm.rings, 0);
  wheel.expire(start + milliseconds(41));
  EXPECT_EQ(alarm.rings, 1);
  EXPECT_EQ(wheel.size(), 0U);
}

TEST(TimerWheel, ACallbackThatRearmsForThePastDoesNotHangExpire) {
  TimerWheel wheel(start);
  Instant now = start + milliseconds(1);
  Alarm alarm;
  alarm.wheel = &wheel;
  alarm.now = &start;
  alarm.rearm = Duration(1);
  wheel.arm(alarm.timer, start);
  EXPECT_EQ(wheel.expire(now), 1U);
  EXPECT_EQ(wheel.expire(now), 1U);
  wheel.cancel(alarm.timer);
}

TEST(TimerWheel, ACallbackThatAlwaysRearmsForThePastDelaysNobodyElse) {
  TimerWheel wheel(start);
  const Instant past{};
  Alarm eager;
  eager.wheel = &wheel;
  eager.now = &past;
  eager.rearm = Duration(1);
  Alarm patient;
  wheel.arm(eager.timer, start);
  wheel.arm(patient.timer, start + milliseconds(5));
  for (int ms = 1; ms <= 10; ++ms) {
    wheel.expire(start + milliseconds(ms));
    EXPECT_EQ(eager.rings, ms) << "once per call";
    EXPECT_EQ(patient.rings, ms >= 6 ? 1 : 0) << "after " << ms << " ms";
  }
  wheel.cancel(eager.timer);
  EXPECT_EQ(wheel.size(), 0U);
}

/// Timers whose callbacks arm and cancel each other at random.
struct Crowd {
  struct Member {
    Crowd* crowd = nullptr;
    Timer timer;
    size_t armed_in = 0;  ///< number of the expire() call during or before which it was armed
  };
  explicit Crowd(uint64_t seed) : random(seed), wheel(start), members(64) {
    for (Member& member : members) {
      member.crowd = this;
      member.timer.bind(
          [](void* self) {
            auto& rung = *static_cast<Member*>(self);
            rung.crowd->ring(rung);
          },
          &member);
      arm(member);
    }
  }
  ~Crowd() {
    for (Member& member : members) {
      wheel.cancel(member.timer);
    }
  }
  void arm(Member& member) {
    const uint64_t spread = uint64_t{1} << (5 + random.below(33));
    const Duration past(microseconds(random.chance(0.2) ? 300 : 0));
    wheel.arm(member.timer, now - past + Duration(static_cast<int64_t>(random.below(spread))));
    member.armed_in = calls;
  }
  void ring(Member& member) {
    ++rings;
    EXPECT_LE(member.timer.deadline(), now) << "early";
    EXPECT_LT(member.armed_in, calls) << "fired in the call that armed it";
    Member& other = members[random.below(members.size())];
    if (random.chance(0.3)) {
      wheel.cancel(other.timer);
    } else {
      arm(other);
    }
    if (!member.timer.armed()) {
      arm(member);
    }
  }
  Random random;
  TimerWheel wheel;
  std::vector<Member> members;
  Instant now = start;
  size_t calls = 0;
  size_t rings = 0;
};

TEST(TimerWheel, CallbacksThatArmAndCancelOthersKeepTheContract) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Crowd crowd(seed);
    for (int round = 0; round < 2000; ++round) {
      crowd.now += Duration(static_cast<int64_t>(crowd.random.below(uint64_t{1} << 24)));
      ++crowd.calls;
      crowd.wheel.expire(crowd.now);
      size_t armed = 0;
      for (const Crowd::Member& member : crowd.members) {
        armed += member.timer.armed() ? 1 : 0;
        ASSERT_TRUE(!member.timer.armed() || member.armed_in == crowd.calls ||
                    member.timer.deadline() + TimerWheel::tick > crowd.now)
            << "late in round " << round;
      }
      ASSERT_EQ(armed, crowd.wheel.size());
    }
    EXPECT_GT(crowd.rings, 1000U);
  }
}

TEST(TimerWheel, ADeadlineThatNeverComesIsNoOverflow) {
  TimerWheel wheel(start);
  Alarm alarm;
  wheel.arm(alarm.timer, Instant::max());
  wheel.expire(start + seconds(3600));
  EXPECT_EQ(alarm.rings, 0);
  EXPECT_TRUE(alarm.timer.armed());
  wheel.cancel(alarm.timer);
}

TEST(TimerWheel, LimitLeavesTheRestForTheNextCall) {
  TimerWheel wheel(start);
  std::vector<std::unique_ptr<Alarm>> alarms;
  for (int i = 0; i < 10; ++i) {
    alarms.push_back(std::make_unique<Alarm>());
    wheel.arm(alarms.back()->timer, start + milliseconds(1));
  }
  EXPECT_EQ(wheel.expire(start + milliseconds(2), 4), 4U);
  EXPECT_EQ(wheel.expire(start + milliseconds(2), 4), 4U);
  EXPECT_EQ(wheel.expire(start + milliseconds(2), 4), 2U);
}

}  // namespace
}  // namespace nccl_ha
