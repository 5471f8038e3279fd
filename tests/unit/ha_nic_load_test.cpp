#include <gtest/gtest.h>

#include "ha/nic_load.h"

namespace nccl_ha::ha {
namespace {

constexpr int64_t gigabit = 1000;

NicReading later(Duration by) {
  NicReading reading;
  reading.at = Instant(std::chrono::seconds(1)) + by;
  return reading;
}

TEST(NicLoad, BytesAloneAreNoCongestionUntilTheLinkIsNearlyFull) {
  const NicReading before = later(Duration(0));
  NicReading now = later(std::chrono::seconds(1));
  now.bytes_out = 100'000'000;
  EXPECT_EQ(nic_load(before, now, gigabit).level, 0);
  EXPECT_NEAR(nic_load(before, now, gigabit).used, 0.8, 0.001);
  now.bytes_out = 125'000'000;
  EXPECT_EQ(nic_load(before, now, gigabit).level, 128);
  EXPECT_EQ(nic_load(before, now, 0).level, 0) << "of an unknown speed nothing is known";
}

TEST(NicLoad, PausesAndDiscardsAreCongestion) {
  const NicReading before = later(Duration(0));
  NicReading now = later(std::chrono::milliseconds(100));
  now.pauses_in = 1;
  EXPECT_GE(nic_load(before, now, gigabit).level, 64);
  now.pauses_in = 100000;
  EXPECT_EQ(nic_load(before, now, gigabit).level, 224);
  now = later(std::chrono::milliseconds(100));
  now.pauses_out = 100000;  // others are asked to stop: not this direction's matter
  EXPECT_EQ(nic_load(before, now, gigabit).level, 0);
  now.discards = 1;
  EXPECT_EQ(nic_load(before, now, gigabit).level, 224);
}

TEST(NicLoad, AQueueIsCongestionByTheTimeThatItTakes) {
  const NicReading before = later(Duration(0));
  NicReading now = later(std::chrono::milliseconds(100));
  now.queue_in = 10'000'000;  // not this direction's matter
  EXPECT_EQ(nic_load(before, now, gigabit).level, 0);
  now.queue_out = 31'250;  // 250 us of a gigabit
  EXPECT_EQ(nic_load(before, now, gigabit).level, 112);
  EXPECT_EQ(nic_load(before, now, 0).level, 0) << "of an unknown speed nothing is known";
  now.queue_out = 10'000'000;
  EXPECT_EQ(nic_load(before, now, gigabit).level, 224) << "it never stops a rail alone";
  EXPECT_EQ(queue_level(62'500, gigabit), 224);
  EXPECT_EQ(queue_level(62'500, 100 * gigabit), 2);
}

TEST(NicLoad, CountersThatBeganAnewAndNoTimeAreNothing) {
  NicReading before = later(Duration(0));
  before.bytes_out = 1000;
  before.discards = 5;
  const NicReading anew = later(std::chrono::seconds(1));
  EXPECT_EQ(nic_load(before, anew, gigabit).bytes_out, 0U);
  EXPECT_EQ(nic_load(before, anew, gigabit).level, 0);
  NicReading same = later(Duration(0));
  same.bytes_out = 1'000'000;
  EXPECT_EQ(nic_load(before, same, gigabit).level, 0);
}

}  // namespace
}  // namespace nccl_ha::ha
