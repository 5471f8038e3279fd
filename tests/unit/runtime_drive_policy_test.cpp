// runtime/engine/drive_policy.h: when a progress thread leaves its worker to the callers.
#include <gtest/gtest.h>

#include "runtime/engine/drive_policy.h"

namespace nccl_ha {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Instant begun_at{std::chrono::seconds(1)};

TEST(DrivePolicy, JudgesByTheShareOfTheProcessorThatTheThreadGot) {
  DrivePolicy policy;
  policy.begin(begun_at, milliseconds(70));
  EXPECT_FALSE(policy.judgement_due(begun_at + microseconds(999)));
  const Instant first = begun_at + DrivePolicy::window;
  EXPECT_TRUE(policy.judgement_due(first));
  EXPECT_TRUE(policy.judge(first, milliseconds(70) + microseconds(800)));
  EXPECT_FALSE(policy.judgement_due(first + microseconds(10))) << "the next window begins";
  EXPECT_FALSE(policy.judge(first + milliseconds(1), milliseconds(71) + microseconds(300)));
}

TEST(DrivePolicy, PausesGrowUpToTheirLimit) {
  DrivePolicy policy;
  Instant now = begun_at;
  Duration pause = DrivePolicy::first_pause;
  for (int i = 0; i < 8; ++i) {
    policy.stand_by(now);
    EXPECT_FALSE(policy.may_return(now + pause - Duration(1))) << i;
    EXPECT_TRUE(policy.may_return(now + pause)) << i;
    now += pause;
    pause = std::min<Duration>(DrivePolicy::growth * pause, DrivePolicy::longest_pause);
  }
  EXPECT_EQ(pause, Duration(DrivePolicy::longest_pause));
}

TEST(DrivePolicy, ATroubleIsForgivenAfterAWhileOfDrivingWell) {
  DrivePolicy policy;
  Instant now = begun_at;
  policy.stand_by(now);
  policy.stand_by(now);
  Duration cpu{};
  const auto drive_well = [&](Duration time) {
    policy.begin(now, cpu);
    for (const Instant end = now + time; now < end;) {
      now += DrivePolicy::window;
      cpu += DrivePolicy::window;
      EXPECT_TRUE(policy.judge(now, cpu));
    }
  };
  drive_well(DrivePolicy::forgiven_after / 2);
  policy.stand_by(now);
  EXPECT_FALSE(policy.may_return(now + DrivePolicy::first_pause)) << "not for long enough";
  drive_well(DrivePolicy::forgiven_after);
  policy.stand_by(now);
  EXPECT_TRUE(policy.may_return(now + DrivePolicy::first_pause));
}

TEST(DrivePolicy, SleepTellsNothingNewOfTheProcessor) {
  DrivePolicy policy;
  policy.stand_by_after_sleep(begun_at);
  EXPECT_TRUE(policy.may_return(begun_at)) << "as far as is known it has one of its own";
  policy.stand_by(begun_at);
  for (int i = 0; i < 3; ++i) {
    policy.stand_by_after_sleep(begun_at);
    EXPECT_FALSE(policy.may_return(begun_at + DrivePolicy::first_pause)) << "it is shared";
    EXPECT_TRUE(policy.may_return(begun_at + DrivePolicy::growth * DrivePolicy::first_pause))
        << "and the pause does not grow";
  }
}

}  // namespace
}  // namespace nccl_ha
