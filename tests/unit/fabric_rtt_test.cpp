#include <gtest/gtest.h>

#include "runtime/fabric/datagram/rtt.h"

namespace nccl_ha::fabric {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Rtt, FollowsRfc6298) {
  RttEstimator rtt({milliseconds(100), microseconds(100), seconds(2)});
  EXPECT_EQ(rtt.rto(), milliseconds(100));
  rtt.sample(milliseconds(10));
  EXPECT_EQ(rtt.srtt(), milliseconds(10));
  EXPECT_EQ(rtt.rto(), milliseconds(10) + 4 * milliseconds(5));
  rtt.sample(milliseconds(10));
  // rttvar = 3/4 * 5 ms
  EXPECT_EQ(rtt.rto(), milliseconds(10) + 4 * microseconds(3750));
  rtt.back_off();
  EXPECT_EQ(rtt.rto(), 2 * (milliseconds(10) + 4 * microseconds(3750)));
  for (int i = 0; i < 20; ++i) {
    rtt.back_off();
  }
  EXPECT_EQ(rtt.rto(), RttEstimator::backoff_max) << "bounded: an outage may end at any moment";
  rtt.sample(milliseconds(10));
  EXPECT_LT(rtt.rto(), milliseconds(50)) << "a sample ends the back-off";
}

TEST(Rtt, AnEstimateMayExceedTheLongestBackOff) {
  RttEstimator rtt({milliseconds(100), microseconds(100), seconds(2)});
  rtt.sample(milliseconds(300));
  EXPECT_EQ(rtt.rto(), milliseconds(900));
  rtt.back_off();
  EXPECT_EQ(rtt.rto(), milliseconds(900));
  for (int i = 0; i < 20; ++i) {
    rtt.sample(seconds(3));
  }
  EXPECT_EQ(rtt.rto(), seconds(2)) << "bounded";
}

TEST(Rtt, AStandstillOfEitherHostIsNoRoundTrip) {
  RttEstimator rtt({milliseconds(100), microseconds(100), seconds(2)});
  for (int i = 0; i < 1000; ++i) {
    rtt.sample(microseconds(100));
  }
  rtt.sample(seconds(3));
  EXPECT_LE(rtt.rto(), milliseconds(250));
  // A network that has become slow is believed.
  for (int i = 0; i < 100; ++i) {
    rtt.sample(seconds(1));
  }
  EXPECT_GE(rtt.rto(), milliseconds(900));
}

}  // namespace
}  // namespace nccl_ha::fabric
