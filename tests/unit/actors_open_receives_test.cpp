#include <gtest/gtest.h>

#include <array>

#include "actors/connection/open_receives.h"

namespace nccl_ha {
namespace {

class OpenReceivesTest : public testing::Test {
 protected:
  /// A receive of so many buffers.
  uint64_t add(uint8_t buffers = 1) {
    ReceiveRequest& request = requests_[groups_.posted() % requests_.size()];
    request.count = buffers;
    request.arrived = {};
    request.group = groups_.add(request);
    return request.group;
  }

  OpenReceives groups_;
  std::array<ReceiveRequest, cts_slots> requests_;
};

TEST_F(OpenReceivesTest, GroupsThatEndOutOfOrderAreCompleteOnceAllBeforeThemAre) {
  for (uint64_t number = 0; number < 3; ++number) {
    EXPECT_EQ(add(), number);
  }
  EXPECT_FALSE(groups_.complete(1));
  EXPECT_EQ(groups_.completed(), 0U);
  EXPECT_EQ(groups_.at(1), nullptr);
  EXPECT_FALSE(groups_.complete(0));
  EXPECT_EQ(groups_.completed(), 2U);
  EXPECT_FALSE(groups_.all_complete());
  EXPECT_FALSE(groups_.complete(2));
  EXPECT_TRUE(groups_.all_complete());
}

/// The oldest decides: what ended behind it makes no room.
TEST_F(OpenReceivesTest, ThereIsRoomAgainWhenTheOldestHasEnded) {
  while (groups_.has_room()) {
    add();
  }
  EXPECT_EQ(groups_.posted(), groups_apart_max);
  EXPECT_FALSE(groups_.complete(1)) << "the oldest is still open";
  EXPECT_FALSE(groups_.has_room());
  EXPECT_TRUE(groups_.complete(0));
  EXPECT_TRUE(groups_.has_room());
  EXPECT_FALSE(groups_.complete(2)) << "there was room before";
}

TEST_F(OpenReceivesTest, AReportTellsOfEachChunkOfWhatIsOpen) {
  add();
  add(2);
  add();
  static_cast<void>(groups_.complete(0));
  static_cast<void>(groups_.complete(2));
  groups_.at(1)->arrived[1] = 0b101;
  const ha::ArrivalReport report = groups_.arrivals();
  EXPECT_EQ(report.completed, 1U);
  ASSERT_EQ(report.groups.size(), 2U);
  EXPECT_FALSE(report.groups[0].whole);
  EXPECT_EQ(report.groups[0].chunks, (std::vector<uint16_t>{0, 0b101}));
  EXPECT_TRUE(report.groups[1].whole);
  EXPECT_TRUE(report.has(0, 0, 0)) << "before the first open one everything is there";
  EXPECT_TRUE(report.has(1, 1, 2));
  EXPECT_FALSE(report.has(1, 1, 1));
  EXPECT_FALSE(report.covers(3));
}

TEST_F(OpenReceivesTest, TheNumberOfBuffersOutlivesTheGroup) {
  add(5);
  static_cast<void>(groups_.complete(0));
  EXPECT_EQ(groups_.buffers_of(0), 5U);
}

}  // namespace
}  // namespace nccl_ha
