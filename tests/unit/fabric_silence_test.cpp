#include <gtest/gtest.h>

#include "runtime/fabric/datagram/silence.h"

namespace nccl_ha::fabric {
namespace {

using std::chrono::seconds;

Moment moment_at(Duration now, Duration lost = {}) { return {Instant(now), lost}; }

TEST(Silence, CountsFromTheFirstTimeoutThatMetIt) {
  Silence silence;
  silence.end(Instant(seconds(1)));
  EXPECT_FALSE(silence.lasts(moment_at(seconds(100)), seconds(10))) << "nobody had asked before";
  EXPECT_FALSE(silence.lasts(moment_at(seconds(109)), seconds(10)));
  EXPECT_TRUE(silence.lasts(moment_at(seconds(110)), seconds(10)));
}

TEST(Silence, AnAnswerEndsIt) {
  Silence silence;
  silence.end(Instant(seconds(1)));
  EXPECT_FALSE(silence.lasts(moment_at(seconds(2)), seconds(10)));
  silence.end(Instant(seconds(11)));
  EXPECT_EQ(silence.since(), Instant(seconds(11)));
  EXPECT_FALSE(silence.lasts(moment_at(seconds(13)), seconds(10)));
  EXPECT_FALSE(silence.lasts(moment_at(seconds(22)), seconds(10)));
  EXPECT_TRUE(silence.lasts(moment_at(seconds(23)), seconds(10)));
}

TEST(Silence, TimeInWhichThisProcessStoodStillIsNone) {
  Silence silence;
  silence.end(Instant(seconds(1)));
  EXPECT_FALSE(silence.lasts(moment_at(seconds(2), seconds(0)), seconds(10)));
  EXPECT_FALSE(silence.lasts(moment_at(seconds(32), seconds(25)), seconds(10)));
  EXPECT_TRUE(silence.lasts(moment_at(seconds(37), seconds(25)), seconds(10)));
}

}  // namespace
}  // namespace nccl_ha::fabric
