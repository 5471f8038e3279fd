#include <gtest/gtest.h>

#include "runtime/base/clock.h"
#include "runtime/base/lost_time.h"

namespace nccl_ha {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Instant begin{seconds(100)};

TEST(LostTime, TurnsThatComeOftenEnoughLoseNothing) {
  LostTime lost;
  for (int i = 0; i < 1000; ++i) {
    lost.on_turn(begin + i * LostTime::allowance);
  }
  EXPECT_EQ(lost.total(), Duration(0));
}

TEST(LostTime, TheTimeUntilTheFirstTurnIsNobodys) {
  LostTime lost;
  lost.on_turn(begin);
  EXPECT_EQ(lost.total(), Duration(0));
}

TEST(LostTime, ALateTurnLosesWhatIsBeyondTheAllowance) {
  LostTime lost;
  lost.on_turn(begin);
  lost.on_turn(begin + milliseconds(300));
  EXPECT_EQ(lost.total(), milliseconds(300) - LostTime::allowance);
  lost.on_turn(begin + milliseconds(400));
  EXPECT_EQ(lost.total(), milliseconds(400) - 2 * LostTime::allowance) << "it adds up";
}

TEST(LostTime, SleepUntilADeadlineIsNotLostAndALateWakeUpIs) {
  LostTime lost;
  lost.on_turn(begin);
  lost.rest_until(begin + seconds(2));
  lost.on_turn(begin + seconds(2) + milliseconds(1));
  EXPECT_EQ(lost.total(), Duration(0));
  lost.rest_until(begin + seconds(3));
  lost.on_turn(begin + seconds(5));
  EXPECT_EQ(lost.total(), seconds(2) - LostTime::allowance);
}

TEST(LostTime, WhoeverIsWokenBeforeTheDeadlineIsDueAtOnce) {
  LostTime lost;
  lost.on_turn(begin);
  lost.rest_until(begin + hours(1));
  lost.on_turn(begin + milliseconds(5));
  lost.on_turn(begin + seconds(1));
  EXPECT_EQ(lost.total(), milliseconds(995) - LostTime::allowance);
}

TEST(LostTime, SleepWithoutADeadlineIsNotLost) {
  LostTime lost;
  lost.on_turn(begin);
  lost.rest_until(Instant::max());
  lost.on_turn(begin + hours(1000));
  EXPECT_EQ(lost.total(), Duration(0));
}

TEST(LostTime, TheTurnsClockAccountsForItWhereItIsLookedAt) {
  ManualClock clock;
  clock.set(begin);
  TurnClock turn(clock);
  turn.begin_turn();
  const Moment first = turn.moment();
  clock.advance(seconds(1));
  EXPECT_EQ(turn.moment().lost, first.lost) << "one turn has one time";
  turn.begin_turn();
  const Moment second = turn.moment();
  EXPECT_EQ(second.now - first.now, seconds(1));
  EXPECT_EQ(second.ran_since(first), LostTime::allowance);
}

}  // namespace
}  // namespace nccl_ha
