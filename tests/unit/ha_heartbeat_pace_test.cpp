#include <gtest/gtest.h>

#include <set>

#include "ha/heartbeat_pace.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;

constexpr HeartbeatPace pace_of(size_t crowd, uint32_t place, bool idle = true) {
  return {milliseconds(200), crowd, place, idle};
}

TEST(HeartbeatPace, FewSpeakAtEveryMoment) {
  for (const size_t crowd : {1UL, 32UL, 63UL}) {
    EXPECT_EQ(pace_of(crowd, 7).stride(), 1U);
    EXPECT_EQ(pace_of(crowd, 7).next(Instant(milliseconds(1001))), Instant(milliseconds(1200)));
  }
}

TEST(HeartbeatPace, ABusyOneSpeaksAtEveryMomentHoweverManyThereAre) {
  EXPECT_EQ(pace_of(10000, 7, false).stride(), 1U);
}

TEST(HeartbeatPace, ManyTakeTurnsAndLeaveNoMomentOut) {
  const Instant now(milliseconds(12345));
  std::set<Instant> moments;
  for (uint32_t place = 0; place < 512; ++place) {
    const HeartbeatPace pace = pace_of(512, place);
    const Instant next = pace.next(now);
    EXPECT_GT(next, now);
    EXPECT_LE(next, now + milliseconds(200 * 10));
    EXPECT_TRUE(pace.due(pace.moment(next)));
    EXPECT_EQ(pace.next(next), next + milliseconds(2000));
    moments.insert(next);
  }
  EXPECT_EQ(moments.size(), HeartbeatPace::stride_max);
}

TEST(HeartbeatPace, ALateLookFindsTheMomentThatItMissed) {
  const HeartbeatPace pace = pace_of(512, 3);  // of 10: 7, 17, 27 ...
  EXPECT_FALSE(pace.due_since(1007, 1007));
  EXPECT_FALSE(pace.due_since(1007, 1016));
  EXPECT_TRUE(pace.due_since(1016, 1017));
  EXPECT_TRUE(pace.due_since(1008, 1019));
  EXPECT_TRUE(pace_of(1, 3).due_since(1016, 1017));
}

TEST(HeartbeatPace, AMomentIsTheLastOneBefore) {
  EXPECT_EQ(pace_of(1, 0).moment(Instant(milliseconds(399))), 1U);
  EXPECT_EQ(pace_of(1, 0).moment(Instant(milliseconds(400))), 2U);
}

}  // namespace
}  // namespace nccl_ha::ha
