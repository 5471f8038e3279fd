#include <gtest/gtest.h>

#include "runtime/base/run_limit.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Moment at(Duration now, Duration lost = {}) { return {Instant(now), lost}; }

TEST(RunLimit, CountsTimeInWhichTheProcessRan) {
  RunLimit limit;
  limit.begin(at(seconds(100), seconds(7)), seconds(30));
  EXPECT_EQ(limit.left(at(seconds(100), seconds(7))), seconds(30));
  EXPECT_EQ(limit.left(at(seconds(120), seconds(7))), seconds(10));
  EXPECT_EQ(limit.left(at(seconds(190), seconds(77))), seconds(10)) << "it stood still for 70 s";
  EXPECT_EQ(limit.left(at(seconds(200), seconds(77))), Duration(0));
  EXPECT_EQ(limit.left(at(seconds(300), seconds(77))), Duration(0));
}

TEST(RunLimit, MoreIsAllowedWhereThatIsMore) {
  RunLimit limit;
  limit.begin(at(seconds(100)), seconds(30));
  limit.allow(at(seconds(110)), seconds(5));
  EXPECT_EQ(limit.left(at(seconds(110))), seconds(20));
  limit.allow(at(seconds(128)), seconds(5));
  EXPECT_EQ(limit.left(at(seconds(128))), seconds(5));
}

/// A process that slept until its deadline cannot tell when it was stopped.
TEST(RunLimit, ATimerThatComesLateGivesAsMuchTimeAgainOnce) {
  RunLimit limit;
  limit.begin(at(seconds(100)), seconds(30));
  EXPECT_EQ(limit.left(at(seconds(170), seconds(40)), Instant(seconds(130))), seconds(30))
      << "not more than the limit";
  EXPECT_EQ(limit.left(at(seconds(190), seconds(40))), seconds(10)) << "it goes on counting";
  EXPECT_EQ(limit.left(at(seconds(240), seconds(80)), Instant(seconds(200))), Duration(0));
  limit.begin(at(seconds(300), seconds(80)), seconds(30));
  EXPECT_EQ(limit.left(at(seconds(330) + milliseconds(2), seconds(80)), Instant(seconds(330))),
            milliseconds(2));
}

}  // namespace
}  // namespace nccl_ha
