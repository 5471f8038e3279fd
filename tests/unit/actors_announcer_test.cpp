#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "actors/connection/announcer.h"
#include "actors/connection/limits.h"
#include "actors/immediate.h"
#include "tests/support/connection_bench.h"

namespace nccl_ha {
namespace {

class AnnouncerTest : public ConnectionBench {
 protected:
  AnnouncerTest() : ConnectionBench(2) {}
  void SetUp() override {
    ConnectionBench::SetUp();
    bench_->state.traits.acknowledged_by_nic = true;
    announcer_ = std::make_unique<Announcer>(bench_->parts(), groups_);
    for (Lane& lane : bench_->paths.lanes()) {
      lane.tables.peer.address = ring_of(bench_->paths.at(lane));
    }
  }
  /// Where the sender has it.
  static uint64_t ring_of(size_t lane) { return 0x100000 * (1 + lane); }
  /// A receive of so many buffers is posted.
  void post(uint8_t buffers = 1) {
    ReceiveRequest& request = requests_[groups_.posted() % requests_.size()];
    request.count = buffers;
    ASSERT_TRUE(announcer_->make_room(buffers));
    request.group = groups_.add(request);
    announcer_->stage(request);
    announcer_->announce_if_due();
  }
  struct Told {
    uint32_t group;
    uint32_t first_entry;
    size_t entries;
    bool operator==(const Told&) const = default;
  };
  std::vector<Told> told(size_t lane = 0) {
    std::vector<Told> all;
    for (const fabric::WritePost& post : bench_->path(lane).posts) {
      const Announcement one = Announcement::unpack(post.immediate);
      EXPECT_EQ(post.remote_address, ring_of(lane) + one.first_entry * sizeof(CtsEntry));
      all.push_back({one.group, one.first_entry, post.gathers[0].length / sizeof(CtsEntry)});
    }
    return all;
  }

  OpenReceives groups_;
  std::array<ReceiveRequest, cts_slots> requests_;
  std::unique_ptr<Announcer> announcer_;
};

TEST_F(AnnouncerTest, WhatTheSenderDoesNotNeedYetIsHeldBackAndGoesInOneWrite) {
  for (unsigned i = 0; i < 6; ++i) {
    post();
  }
  ASSERT_EQ(told().size(), 4U) << "it has places for four more messages";
  EXPECT_EQ(told().back(), (Told{3, 3, 1}));
  for (uint64_t number = 0; number < 3; ++number) {
    static_cast<void>(groups_.complete(number));
    announcer_->announce_if_short();
  }
  ASSERT_EQ(told().size(), 5U);
  EXPECT_EQ(told().back(), (Told{4, 4, 2}));
}

TEST_F(AnnouncerTest, WhereAcknowledgementsRideOnMessagesNothingIsHeldBack) {
  bench_->state.traits.acknowledged_by_nic = false;
  for (unsigned i = 0; i < 6; ++i) {
    post();
  }
  EXPECT_EQ(told().size(), 6U);
}

/// One write ends where the ring does.
TEST_F(AnnouncerTest, AGroupDoesNotGoRoundTheEndOfTheRing) {
  size_t entries = 0;
  while (entries + 7 <= cts_entries) {
    post(7);
    static_cast<void>(groups_.complete(groups_.posted() - 1));
    announcer_->announce_if_short();
    entries += 7;
  }
  ASSERT_NE(entries, cts_entries) << "else this tests nothing";
  post(7);
  EXPECT_EQ(told().back().first_entry, 0U);
  EXPECT_EQ(told().back().entries, 7U);
}

TEST_F(AnnouncerTest, AfterALaneFailedAllThatIsOpenGoesOverAnotherOneOnceThePeerHasStopped) {
  post();
  post(2);
  static_cast<void>(groups_.complete(0));
  announcer_->note_known(1);  // by the data that completed it
  bench_->paths.lane(0).usable = false;
  announcer_->renew();
  announcer_->announce_again(false);
  EXPECT_TRUE(told(1).empty()) << "what was written on the lane that failed may still land";
  announcer_->announce_again(true);
  EXPECT_EQ(told(1), (std::vector<Told>{{1, 1, 2}}));
  EXPECT_EQ(announcer_->lane(), 1U);
  announcer_->announce_again(true);
  EXPECT_EQ(told(1).size(), 1U) << "once";
}

TEST_F(AnnouncerTest, WhatEagerMessagesCompletedGoesAgainAsLongAsTheSenderMayNotHaveHeardOfIt) {
  post();
  post(2);
  post();
  static_cast<void>(groups_.complete(0));
  static_cast<void>(groups_.complete(1));
  announcer_->note_known(1);
  bench_->paths.lane(0).usable = false;
  announcer_->renew();
  announcer_->announce_again(true);
  EXPECT_EQ(told(1), (std::vector<Told>{{1, 1, 3}}));
}

TEST_F(AnnouncerTest, NothingIsLostThatIsPostedWhileThereIsNoLane) {
  bench_->paths.lane(0).usable = false;
  bench_->paths.lane(1).usable = false;
  announcer_->renew();
  post();
  announcer_->announce_again(true);
  EXPECT_TRUE(told(1).empty());
  bench_->paths.lane(1).usable = true;
  announcer_->announce_again(true);
  EXPECT_EQ(told(1), (std::vector<Told>{{0, 0, 1}}));
}

}  // namespace
}  // namespace nccl_ha
