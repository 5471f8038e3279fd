#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "actors/connection/clear_to_sends.h"
#include "tests/support/connection_bench.h"

namespace nccl_ha {
namespace {

class ClearToSendsTest : public ConnectionBench {
 protected:
  using Verdict = ClearToSends::Verdict;
  static constexpr uint32_t epoch = 3;

  void SetUp() override {
    ConnectionBench::SetUp();
    channel_ = std::make_unique<SendChannel>(1, fabric::Attachment{});
    announced_ = std::make_unique<ClearToSends>(*channel_);
  }
  /// The peer's NIC writes the entry of a group of one buffer.
  void write(uint64_t group, size_t at, uint32_t shadow_key = 0, size_t lane = 0) {
    CtsEntry entry{};
    entry.group = group;
    entry.address = 0x1000 * (group + 1);
    entry.size = 100;
    entry.count = 1;
    entry.shadow_keys[0] = shadow_key;
    entry.shadow_epochs[0] = 7;
    entry.seal();
    (*announced_->ring(lane))[at] = entry;
  }
  fabric::Completion told(uint64_t group, size_t at, size_t entries, uint32_t of_epoch = epoch) {
    const Announcement announcement{static_cast<uint32_t>(group), static_cast<uint32_t>(at),
                                    of_epoch};
    return arrival(0, announcement.pack(), entries * sizeof(CtsEntry));
  }
  Verdict take(const fabric::Completion& completion, size_t lane = 0) {
    news_ = {};
    return announced_->take(completion, lane, epoch, news_);
  }

  std::unique_ptr<SendChannel> channel_;
  std::unique_ptr<ClearToSends> announced_;
  ClearToSends::News news_;
};

TEST_F(ClearToSendsTest, GroupsThatLieSideBySideArePublishedTogether) {
  for (uint64_t group = 0; group < 3; ++group) {
    write(group, group);
  }
  EXPECT_EQ(take(told(0, 0, 3)), Verdict::good);
  EXPECT_EQ(news_.first, 0U);
  EXPECT_EQ(news_.groups, 3U);
  EXPECT_EQ(channel_->published_groups(), 3U);
}

/// A device that nobody can stop writes as late as it likes what came over its own lane.
TEST_F(ClearToSendsTest, WhatIsLateOnOneLaneTouchesNothingOfAnother) {
  write(0, 0);
  EXPECT_EQ(take(told(0, 0, 1)), Verdict::good);
  write(1, 1, 0, 2);  // over lane 2 from now on
  EXPECT_EQ(take(told(1, 1, 1), 2), Verdict::good);
  write(2, 2, 0, 2);
  write(7, 2, 0, 0);
  EXPECT_EQ(take(told(2, 2, 1), 2), Verdict::good);
  EXPECT_EQ(channel_->published_groups(), 3U);
  EXPECT_NE(announced_->ring(0), announced_->ring(2));
}

TEST_F(ClearToSendsTest, WhatIsNextIsLookedForWhereTheLatestCame) {
  write(0, 0);
  EXPECT_EQ(take(told(0, 0, 1)), Verdict::good);
  EXPECT_EQ(take(told(0, 0, 1), 2), Verdict::malformed) << "nothing is written there";
  write(0, 0, 0, 2);
  EXPECT_EQ(take(told(0, 0, 1), 2), Verdict::good) << "announced anew over lane 2";
  write(1, 1, 0, 2);
  EXPECT_TRUE(announced_->find(news_));
  EXPECT_EQ(news_.first, 1U);
  EXPECT_EQ(take(told(1, 1, 1), 2), Verdict::good);
  EXPECT_EQ(channel_->published_groups(), 2U);
}

TEST_F(ClearToSendsTest, WhatIsAnnouncedOnceMoreIsNoNews) {
  write(0, 0);
  write(1, 1);
  EXPECT_EQ(take(told(0, 0, 2)), Verdict::good);
  write(2, 2);
  EXPECT_EQ(take(told(1, 1, 2)), Verdict::good) << "1 again, and 2";
  EXPECT_EQ(news_.first, 2U);
  EXPECT_EQ(news_.groups, 1U);
}

TEST_F(ClearToSendsTest, AGroupFoundInMemoryIsPublishedOnceThoughItsCompletionComesLater) {
  write(0, 0);
  EXPECT_TRUE(announced_->find(news_));
  EXPECT_EQ(news_.groups, 1U);
  EXPECT_FALSE(announced_->find(news_)) << "the next one is not there yet";
  EXPECT_EQ(take(told(0, 0, 1)), Verdict::good);
  EXPECT_EQ(news_.groups, 0U);
  EXPECT_EQ(channel_->published_groups(), 1U);
}

TEST_F(ClearToSendsTest, NoMoreGroupsAreFoundThanCompletionsMayBeBehind) {
  for (uint64_t group = 0; group <= cts_found_ahead_max; ++group) {
    write(group, group);
  }
  for (uint64_t group = 0; group < cts_found_ahead_max; ++group) {
    EXPECT_TRUE(announced_->find(news_)) << group;
  }
  EXPECT_FALSE(announced_->find(news_));
  EXPECT_EQ(take(told(0, 0, 1)), Verdict::good);
  EXPECT_TRUE(announced_->find(news_));
}

TEST_F(ClearToSendsTest, WhatNoReceiverSaysIsRefused) {
  write(0, 0);
  const std::vector<std::pair<const char*, std::function<fabric::Completion()>>> faults{
      {"no entry", [&] { return told(0, 0, 0); }},
      {"half an entry",
       [&] {
         auto completion = told(0, 0, 1);
         completion.bytes -= 1;
         return completion;
       }},
      {"beyond the ring", [&] { return told(0, cts_entries - 1, 2); }},
      {"of an older path", [&] { return told(0, 0, 1, epoch - 1); }},
      {"of a group that is far ahead", [&] { return told(40, 0, 1); }},
      {"of another kind",
       [&] { return arrival(0, Immediate{ImmediateKind::data}.pack(), sizeof(CtsEntry)); }},
      {"where nothing was written", [&] { return told(0, 5, 1); }},
  };
  for (const auto& [what, make] : faults) {
    EXPECT_EQ(take(make()), Verdict::malformed) << what;
    EXPECT_EQ(channel_->published_groups(), 0U) << what;
  }
}

TEST_F(ClearToSendsTest, KeysAreNotedFromTheMomentOnThatTheyAreWanted) {
  write(0, 0, 40);
  EXPECT_EQ(take(told(0, 0, 1)), Verdict::good);
  EXPECT_EQ(announced_->keys().key(0, 0, 0, 7), 0U);
  announced_->note_keys(0);
  write(0, 0, 41);
  EXPECT_EQ(take(told(0, 0, 1)), Verdict::good);
  EXPECT_EQ(announced_->keys().key(0, 0, 0, 7), 41U);
}

}  // namespace
}  // namespace nccl_ha
