#include <gtest/gtest.h>

#include "runtime/telemetry/trace_schedule.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;
constexpr uint32_t failure = bit_of(TraceCause::failure);
constexpr uint32_t failover = bit_of(TraceCause::failover);
constexpr uint32_t by_signal = bit_of(TraceCause::signal);
constexpr Instant asked{std::chrono::hours(1)};

class TraceScheduleTest : public ::testing::Test {
 protected:
  TraceSchedule schedule_{{milliseconds(1000), milliseconds(50)}};
};

TEST_F(TraceScheduleTest, NobodyAskedNothingIsDue) {
  EXPECT_EQ(schedule_.due(), std::nullopt);
  EXPECT_EQ(schedule_.take(asked), 0U);
}

TEST_F(TraceScheduleTest, AFailureIsDueAtOnceAFailoverWhenItsOtherSideHasFollowed) {
  schedule_.ask(failover, asked);
  EXPECT_EQ(schedule_.due(), asked + milliseconds(50));
  schedule_.ask(failover, asked + milliseconds(40));  // the other direction: puts nothing off
  EXPECT_EQ(schedule_.due(), asked + milliseconds(50));
  schedule_.ask(failure, asked + milliseconds(10));
  EXPECT_EQ(schedule_.due(), asked + milliseconds(10));
  EXPECT_EQ(schedule_.take(asked + milliseconds(10)), failure | failover);
  EXPECT_EQ(schedule_.due(), std::nullopt);
}

TEST_F(TraceScheduleTest, TheSecondOfItsKindWaitsAndIsNotLeftOut) {
  schedule_.ask(failure, asked);
  EXPECT_EQ(schedule_.take(asked), failure);
  schedule_.ask(failover, asked + milliseconds(1));  // of another kind
  EXPECT_EQ(schedule_.due(), asked + milliseconds(51));
  EXPECT_EQ(schedule_.take(asked + milliseconds(51)), failover);
  schedule_.ask(failure, asked + milliseconds(500));
  schedule_.ask(failover, asked + milliseconds(500));
  EXPECT_EQ(schedule_.due(), asked + milliseconds(1000));
  EXPECT_EQ(schedule_.take(asked + milliseconds(1000)), failure | failover);
}

TEST_F(TraceScheduleTest, ADumpByASignalIsAlwaysMadeAndPutsNothingOff) {
  schedule_.ask(by_signal, asked);
  EXPECT_EQ(schedule_.due(), asked);
  EXPECT_EQ(schedule_.take(asked), by_signal);
  schedule_.ask(by_signal, asked);
  EXPECT_EQ(schedule_.due(), asked);
  EXPECT_EQ(schedule_.take(asked), by_signal);
  schedule_.ask(failover, asked);
  EXPECT_EQ(schedule_.due(), asked + milliseconds(50));
}

}  // namespace
}  // namespace nccl_ha
