#include <gtest/gtest.h>

#include "runtime/base/config.h"
#include "runtime/fabric/datagram/network_estimate.h"
#include "runtime/fabric/datagram/options.h"

namespace nccl_ha::fabric {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

class NetworkEstimateTest : public testing::Test {
 protected:
  void grow(uint32_t round_trips, Duration rtt = microseconds(100)) {
    for (uint32_t i = 0; i < round_trips; ++i) {
      now_ += rtt;
      network_.on_ack(now_, network_.window(), rtt, true);
    }
  }
  Instant now_{seconds(1)};
  NetworkEstimate network_{{milliseconds(100), milliseconds(5), seconds(2)}, milliseconds(10), 256};
};

TEST_F(NetworkEstimateTest, ABurstThatTimesOutIsOneTimeout) {
  network_.on_sample(microseconds(100));
  grow(20);
  EXPECT_EQ(network_.window(), 256U);
  for (int i = 0; i < 10; ++i) {
    network_.on_timeout(now_);
  }
  EXPECT_EQ(network_.window(), 64U);
  EXPECT_EQ(network_.rto(), milliseconds(10));
  now_ += milliseconds(5);
  network_.on_timeout(now_);
  EXPECT_EQ(network_.window(), 16U);
  EXPECT_EQ(network_.rto(), milliseconds(20));
}

TEST_F(NetworkEstimateTest, HowMuchDelayIsAQueueIsSet) {
  const auto window_at_five_ms = [&](int64_t target_us) {
    Config config;
    config.dgram_target_delay_us = target_us;
    const DatagramOptions options = DatagramOptions::from(config);
    network_ = NetworkEstimate(options.rtt, options.target_delay, 256);
    grow(20);
    EXPECT_EQ(network_.window(), 256U);
    grow(20, milliseconds(5));
    return network_.window();
  };
  EXPECT_EQ(window_at_five_ms(6000), 256U);
  EXPECT_LT(window_at_five_ms(1000), 64U);
}

TEST_F(NetworkEstimateTest, AnAcknowledgementWithoutSampleCountsAsTheUsualRoundTrip) {
  network_.on_sample(milliseconds(30));
  network_.on_ack(now_, network_.window(), Duration(0), true);
  EXPECT_EQ(network_.window(), 20U) << "no delay over the smallest one seen";
}

TEST_F(NetworkEstimateTest, AWayThatHasBecomeLongerIsBelieved) {
  grow(20);
  EXPECT_EQ(network_.window(), 256U);
  grow(190, milliseconds(50));  // 9.5 s
  EXPECT_EQ(network_.window(), 10U) << "it could be a queue";
  EXPECT_EQ(network_.least(), microseconds(100));
  grow(200, milliseconds(50));
  EXPECT_EQ(network_.least(), milliseconds(50));
  EXPECT_EQ(network_.window(), 256U);
}

TEST_F(NetworkEstimateTest, SilenceDoesNotMakeAWayLonger) {
  grow(20);
  now_ += seconds(60);
  grow(1, milliseconds(50));
  EXPECT_EQ(network_.least(), microseconds(100));
}

TEST_F(NetworkEstimateTest, AQueueThatComesAndGoesIsNotTakenForTheWay) {
  grow(20);
  for (int i = 0; i < 3000; ++i) {  // 36 s
    grow(1, milliseconds(9));
    grow(1, milliseconds(15));
  }
  EXPECT_EQ(network_.least(), microseconds(100));
  EXPECT_LT(network_.window(), 64U);
}

TEST_F(NetworkEstimateTest, TheWindowIsWhatBothEndsAgreedOn) {
  network_.set_window_max(64);
  grow(20);
  EXPECT_EQ(network_.window(), 64U);
}

TEST_F(NetworkEstimateTest, TheLastSegmentIsWaitedForTwoRoundTrips) {
  network_.on_sample(milliseconds(3));
  EXPECT_EQ(network_.tail_wait(microseconds(50)), milliseconds(6) + microseconds(50));
  NetworkEstimate near({milliseconds(100), milliseconds(5), seconds(2)}, milliseconds(10), 256);
  near.on_sample(microseconds(10));
  EXPECT_EQ(near.tail_wait(microseconds(50)), microseconds(500)) << "a host may be busy so long";
}

}  // namespace
}  // namespace nccl_ha::fabric
