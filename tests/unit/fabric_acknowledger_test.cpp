#include <gtest/gtest.h>

#include "runtime/base/config.h"
#include "runtime/fabric/datagram/acknowledger.h"
#include "tests/support/datagram_environment.h"

namespace nccl_ha::fabric {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class AcknowledgerTest : public testing::Test {
 protected:
  void arrive(uint32_t sequence, bool end = false) {
    acks_.on_arrival(1000 + sequence, end);
    window_.arrive(sequence, {});
  }
  bool owed() const { return env().acks.first() != nullptr || urgent() != 0; }
  size_t urgent() const {
    size_t count = 0;
    for (const AckLink* one : env().acks.urgent()) {
      count += one->urgent ? 1 : 0;
    }
    return count;
  }
  PathEnvironment& env() { return world_.env; }
  const PathEnvironment& env() const { return world_.env; }

  test::DatagramEnvironment world_;
  std::unique_ptr<DatagramPath> path_ = world_.make_path();
  DatagramPathCounters statistics_;
  ReceiveWindow window_{64};
  Acknowledger acks_{world_.env, *path_, statistics_, Duration(0)};
};

TEST_F(AcknowledgerTest, WhatIsNotUrgentWaitsForAFrameToTravelOn) {
  arrive(0);
  acks_.owe(false);
  EXPECT_FALSE(env().acks.due(env().now));
  EXPECT_TRUE(env().acks.due(env().now + env().options.ack_delay));
  world_.advance(microseconds(30));
  FrameHeader header;
  acks_.piggyback(header, window_);
  EXPECT_EQ(header.flags, flag_ack | flag_echo);
  EXPECT_EQ(header.acknowledge, 1U);
  EXPECT_EQ(header.credits, 64U - 1) << "it was not delivered";
  EXPECT_EQ(header.echo_us, 1000U);
  EXPECT_EQ(header.ack_delay_us, 30U);
  EXPECT_FALSE(owed());
  EXPECT_EQ(statistics_.acks_piggybacked, 1U);
  FrameHeader next;
  acks_.piggyback(next, window_);
  EXPECT_EQ(next.flags, flag_ack) << "a time is echoed once";
  EXPECT_EQ(statistics_.acks_piggybacked, 1U) << "there was nothing to carry";
}

TEST(AcknowledgerSetting, SaysHowLongAFrameToTravelOnIsAwaited) {
  Config config;
  config.dgram_ack_delay_us = 300;
  test::DatagramEnvironment world(DatagramOptions::from(config));
  const std::unique_ptr<DatagramPath> path = world.make_path();
  DatagramPathCounters statistics;
  Acknowledger acks(world.env, *path, statistics, Duration(0));
  acks.on_arrival(1000, false);
  acks.owe(false);
  EXPECT_FALSE(world.env.acks.due(world.env.now + microseconds(299)));
  EXPECT_TRUE(world.env.acks.due(world.env.now + microseconds(300)));
}

TEST_F(AcknowledgerTest, AGapNeedsTheBitmap) {
  arrive(0);
  arrive(2);
  acks_.owe(true);
  FrameHeader header;
  acks_.piggyback(header, window_);
  EXPECT_EQ(header.acknowledge, 1U);
  EXPECT_EQ(urgent(), 1U) << "which a segment does not carry";
  EXPECT_EQ(statistics_.acks_piggybacked, 0U);
  acks_.acknowledge(header, window_);
  EXPECT_FALSE(owed());
  EXPECT_EQ(statistics_.acks_sent, 1U);
}

TEST_F(AcknowledgerTest, ManyArrivalsAreNotKeptWaiting) {
  for (uint32_t i = 0; i < env().options.ack_every; ++i) {
    EXPECT_FALSE(acks_.many());
    arrive(i);
  }
  EXPECT_TRUE(acks_.many());
  acks_.settle();
  EXPECT_FALSE(acks_.many());
}

TEST_F(AcknowledgerTest, WhoHasLeisureIsAcknowledgedLaterAndBehindOthers) {
  const std::unique_ptr<DatagramPath> patient = world_.make_path();
  Acknowledger later(env(), *patient, statistics_, microseconds(100));
  later.owe(false);
  world_.advance(microseconds(60));
  arrive(0);
  acks_.owe(false);
  const Duration delay = env().options.ack_delay;
  ASSERT_LT(delay, microseconds(90));
  for (uint32_t i = 0; i < env().options.ack_every; ++i) {
    EXPECT_FALSE(later.many());
    later.on_arrival(i, false);
  }
  EXPECT_FALSE(later.many()) << "parts of something long";
  for (uint32_t i = 0; i < env().options.ack_every; ++i) {
    EXPECT_FALSE(later.many());
    later.on_arrival(i, true);
  }
  EXPECT_TRUE(later.many()) << "each of which was posted for itself";
  ASSERT_NE(env().acks.first(), nullptr);
  EXPECT_EQ(&env().acks.first()->path, path_.get());
  EXPECT_TRUE(env().acks.due(env().now + delay));
  acks_.settle();
  ASSERT_NE(env().acks.first(), nullptr);
  EXPECT_EQ(&env().acks.first()->path, patient.get());
  EXPECT_FALSE(env().acks.due(env().now + microseconds(39) + delay));
  EXPECT_TRUE(env().acks.due(env().now + microseconds(40) + delay));
}

TEST_F(AcknowledgerTest, HurryingConcernsWhatArrived) {
  acks_.hurry();
  EXPECT_FALSE(owed());
  EXPECT_FALSE(env().acks_due);
  arrive(0);
  acks_.owe(false);
  acks_.hurry();
  EXPECT_EQ(urgent(), 1U);
  EXPECT_TRUE(env().acks_due);
}

TEST_F(AcknowledgerTest, CreditsAreNewsOnceTheyWereGone) {
  acks_.on_credits(5);
  EXPECT_FALSE(owed());
  acks_.on_credits(0);
  EXPECT_FALSE(owed());
  acks_.on_credits(1);
  EXPECT_EQ(urgent(), 1U);
  acks_.settle();
  acks_.on_credits(2);
  EXPECT_FALSE(owed());
}

TEST_F(AcknowledgerTest, AnEchoThatWasHeldForTooLongIsNone) {
  arrive(0);
  world_.advance(milliseconds(66));
  FrameHeader header;
  acks_.piggyback(header, window_);
  EXPECT_EQ(header.flags, flag_ack);
}

TEST_F(AcknowledgerTest, LeavesNothingBehind) {
  {
    Acknowledger other(env(), *path_, statistics_, Duration(0));
    other.owe(true);
    other.owe(false);
    EXPECT_TRUE(owed());
  }
  EXPECT_EQ(env().acks.first(), nullptr);
  EXPECT_TRUE(env().acks.urgent().empty());
}

}  // namespace
}  // namespace nccl_ha::fabric
