#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "actors/connection/limits.h"
#include "actors/connection/sender.h"
#include "actors/immediate.h"
#include "tests/support/connection_bench.h"

namespace nccl_ha {
namespace {

/// Two lanes that carry data.  They are shadows in name only: nothing here asks for primaries.
class SenderTest : public ConnectionBench, private Sender::Owner {
 protected:
  SenderTest() : ConnectionBench(2) {}
  void SetUp() override {
    ConnectionBench::SetUp();
    channel_ = std::make_unique<SendChannel>(1, fabric::Attachment{});
    sender_ = std::make_unique<Sender>(bench_->parts(), owner(), *channel_);
    sender_->begin(true);
    sender_->serve(std::array{ha::ServingSet::Share{0, 1}, ha::ServingSet::Share{1, 1}});
  }
  void TearDown() override { sender_.reset(); }
  Sender::Owner& owner() { return *this; }
  void on_memory_rejected(size_t lane, const Error&) override { rejected_.push_back(lane); }
  void on_rail_rejected(uint8_t) override {}
  void on_eager_arrived() override {}
  void on_fence_late(size_t) override {}
  void on_fence_proven(size_t) override {}
  bool give_way() override {
    ++asked_to_give_way_;
    return false;
  }

  /// The peer announces a buffer of that size.
  void announce(uint64_t group, uint32_t size) {
    CtsEntry entry{};
    entry.group = group;
    entry.address = 0x500000;
    entry.size = size;
    entry.key = 77;
    entry.count = 1;
    entry.seal();
    const size_t at = group % cts_entries;
    sender_->ring(0)[at] = entry;
    const Announcement announcement{static_cast<uint32_t>(group), static_cast<uint32_t>(at), 0};
    sender_->on_completion(arrival(0, announcement.pack(), sizeof entry));
  }
  SendRequest& send(uint64_t group, uint32_t size) {
    announce(group, size);
    const CtsEntry* place = channel_->match(0);
    EXPECT_NE(place, nullptr);
    SendRequest* request = channel_->submit(*place, memory_.data(), size, 5);
    EXPECT_NE(request, nullptr);
    sender_->on_submitted();
    return *request;
  }
  /// Data that was posted on a lane, control messages left out.
  std::vector<fabric::WritePost> data(size_t lane) {
    std::vector<fabric::WritePost> found;
    for (const fabric::WritePost& post : bench_->path(lane).posts) {
      if (!post.has_immediate || !ControlMark::marks(post.immediate)) {
        found.push_back(post);
      }
    }
    return found;
  }
  void acknowledge(size_t lane, size_t which) {
    sender_->on_completion(completion_of(lane, data(lane)[which]));
  }
  /// The lane is given up, and what was posted there has come back.
  void fence(size_t lane) {
    bench_->paths.lane(lane).usable = false;
    bench_->paths.lane(lane).writes_open = 0;
  }
  static bool done(const SendRequest& request) {
    return request.state.load() == RequestState::done;
  }
  uint32_t threshold() const { return static_cast<uint32_t>(Config{}.ib_split_threshold); }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 20);
  std::unique_ptr<SendChannel> channel_;
  std::unique_ptr<Sender> sender_;
  std::vector<size_t> rejected_;
  unsigned asked_to_give_way_ = 0;
};

TEST_F(SenderTest, ASmallMessageGoesWholeAndLanesTakeTurns) {
  const SendRequest& first = send(0, 100);
  const SendRequest& second = send(1, 100);
  ASSERT_EQ(data(0).size(), 1U);
  ASSERT_EQ(data(1).size(), 1U);
  const Immediate immediate = Immediate::unpack(data(1).front().immediate);
  EXPECT_EQ(immediate.group, 1U);
  EXPECT_EQ(immediate.last_chunk, 0U);
  EXPECT_EQ(data(0).front().remote_address, 0x500000U);
  EXPECT_EQ(data(0).front().remote_key, 77U);
  acknowledge(1, 0);
  EXPECT_FALSE(done(first));
  EXPECT_TRUE(done(second));
}

/// The peer opens no group so far ahead of one that it has not whole.
TEST_F(SenderTest, HoldsNothingOfWhatThePeerMustHaveWhole) {
  sender_->serve(std::array{ha::ServingSet::Share{1, 1}});
  SendRequest& first = send(0, 100);
  acknowledge(1, 0);
  ASSERT_TRUE(done(first));
  channel_->release(first);
  sender_->serve(std::array{ha::ServingSet::Share{0, 1}});
  for (uint64_t group = 1; group <= groups_apart_max; ++group) {
    EXPECT_TRUE(sender_->holds(1)) << group;
    SendRequest& next = send(group, 100);
    acknowledge(0, group - 1);
    ASSERT_TRUE(done(next)) << group;
    channel_->release(next);
  }
  EXPECT_FALSE(sender_->holds(1));
  EXPECT_TRUE(sender_->holds(0));
}

TEST_F(SenderTest, AShadowWithoutAKeyGivesWayToWhateverIsBetter) {
  bench_->paths.lane(0).usable = false;
  bench_->paths.lane(1).foreign_keys = true;
  sender_->serve(std::array{ha::ServingSet::Share{1, 1}});
  send(0, 100);
  EXPECT_EQ(data(1).size(), 0U) << "without the peer's key";
  EXPECT_EQ(asked_to_give_way_, 1U) << "another shadow may be better, for which keys are told";
}

TEST_F(SenderTest, ALargeMessageIsSplitInProportionToWeights) {
  sender_->serve(std::array{ha::ServingSet::Share{0, 1}, ha::ServingSet::Share{1, 3}});
  send(0, 1 << 19);
  EXPECT_EQ(data(0).front().gathers[0].length, 1U << 17);
  EXPECT_EQ(data(1).front().gathers[0].length, 3U << 17);
}

TEST_F(SenderTest, WhatWasCutForALaneThatCarriesNoMoreGoesOverAnother) {
  bench_->paths.lane(0).usable = false;
  bench_->paths.lane(1).usable = false;
  const SendRequest& request = send(0, 2 * threshold());
  EXPECT_TRUE(data(0).empty());
  bench_->paths.lane(1).usable = true;
  sender_->serve(std::array{ha::ServingSet::Share{1, 1}});
  sender_->pump();
  EXPECT_TRUE(data(0).empty());
  ASSERT_EQ(data(1).size(), 2U);
  acknowledge(1, 0);
  acknowledge(1, 1);
  EXPECT_TRUE(done(request));
}

TEST_F(SenderTest, ALargeMessageIsSplitAndDoneWhenBothHalvesAre) {
  const uint32_t size = 2 * threshold();
  const SendRequest& request = send(0, size);
  ASSERT_EQ(data(0).size(), 1U);
  ASSERT_EQ(data(1).size(), 1U);
  EXPECT_EQ(data(0).front().gathers[0].length + data(1).front().gathers[0].length, size);
  acknowledge(0, 0);
  EXPECT_FALSE(done(request));
  acknowledge(1, 0);
  EXPECT_TRUE(done(request));
}

/// Longer than a write of that path may be, or out of order there: its length is told apart.
TEST_F(SenderTest, TheEndOfALongChunkIsAWriteOfItsOwn) {
  Lane& lane = bench_->paths.lane(0);
  lane.traits.end_apart_above = 1000;
  sender_->adapt_to(lane);
  const SendRequest& request = send(0, 4000);
  const auto posts = data(0);
  ASSERT_EQ(posts.size(), 2U);
  EXPECT_FALSE(posts[0].has_immediate);
  EXPECT_EQ(posts[0].gathers[0].length, 4000U);
  EXPECT_EQ(Immediate::unpack(posts[1].immediate).kind, ImmediateKind::recorded);
  EXPECT_EQ(posts[1].gathers[0].length, sizeof(uint32_t));
  acknowledge(0, 0);
  EXPECT_FALSE(done(request));
  acknowledge(0, 1);
  EXPECT_TRUE(done(request));
}

TEST_F(SenderTest, AfterAFenceWhatDidNotArriveGoesAgainAndTheRestIsDone) {
  const SendRequest& arrived = send(0, 100);
  send(1, 100);  // on the other lane
  const SendRequest& lost = send(2, 200);
  ASSERT_EQ(data(0).size(), 2U);
  fence(0);
  ha::ArrivalReport report;
  report.completed = 1;
  report.groups.resize(2);
  report.groups[0].chunks = {0};
  report.groups[1].chunks = {0};
  const Sender::TakenBack counts = sender_->take_back(0, report);
  EXPECT_TRUE(counts.good);
  EXPECT_EQ(counts.chunks_kept, 1U);
  EXPECT_EQ(counts.chunks_again, 1U);
  EXPECT_EQ(counts.bytes_again, 200U);
  EXPECT_TRUE(done(arrived));
  EXPECT_FALSE(done(lost));
  sender_->pump();
  ASSERT_EQ(data(1).size(), 2U);
  EXPECT_EQ(Immediate::unpack(data(1).back().immediate).group, 2U);
  acknowledge(1, 1);
  EXPECT_TRUE(done(lost));
}

TEST_F(SenderTest, AReportThatDeniesWhatItsNicAcknowledgedEndsTheConnection) {
  send(0, 100);
  acknowledge(0, 0);
  fence(0);
  ha::ArrivalReport report;
  report.groups.resize(1);
  report.groups[0].chunks = {0};
  EXPECT_FALSE(sender_->take_back(0, report).good);
  ASSERT_EQ(bench_->failures.size(), 1U);
  EXPECT_NE(bench_->failures.front().find("between acknowledging"), std::string::npos);
}

TEST_F(SenderTest, AReportThatLeavesAGroupOutEndsTheConnection) {
  send(0, 100);
  fence(0);
  EXPECT_FALSE(sender_->take_back(0, ha::ArrivalReport{}).good);
  EXPECT_EQ(bench_->failures.size(), 1U);
}

TEST_F(SenderTest, WorkOfALaneOutOfUseIsToldToWhoeverWaitsForIt) {
  send(0, 100);
  bench_->paths.lane(0).usable = false;
  fabric::Completion lost = completion_of(0, data(0).front());
  lost.status = fabric::CompletionStatus::flushed;
  sender_->on_completion(lost);
  EXPECT_EQ(bench_->work_back, (std::vector<size_t>{0}));
  EXPECT_EQ(bench_->paths.lane(0).writes_open, 0U);
}

TEST_F(SenderTest, AMalformedClearToSendEndsTheConnection) {
  sender_->on_completion(arrival(0, Announcement{9, 0, 0}.pack(), sizeof(CtsEntry)));
  ASSERT_EQ(bench_->failures.size(), 1U);
  EXPECT_NE(bench_->failures.front().find("clear-to-send"), std::string::npos);
}

TEST_F(SenderTest, WhatTheReceiverHadWhenItClosedIsDone) {
  const SendRequest& first = send(0, 100);
  const SendRequest& second = send(1, 100);
  EXPECT_FALSE(sender_->idle());
  sender_->acknowledge_all_below(1);
  EXPECT_TRUE(done(first));
  EXPECT_FALSE(done(second));
}

TEST_F(SenderTest, AReportForALaneThatStillWorksEndsTheConnection) {
  const SendRequest& request = send(0, 100);
  ha::ArrivalReport report;
  report.completed = 1;
  EXPECT_FALSE(sender_->take_back(0, report).good);
  ASSERT_EQ(bench_->failures.size(), 1U);
  EXPECT_NE(bench_->failures.front().find("nothing of the lane is under way"), std::string::npos);
  EXPECT_FALSE(done(request));
}

TEST_F(SenderTest, AWriteThatCompletesTwiceEndsTheConnectionAndNoMessage) {
  const SendRequest& first = send(0, 2 * threshold());
  const SendRequest& other = send(1, 100);
  acknowledge(0, 0);
  acknowledge(0, 0);
  ASSERT_EQ(bench_->failures.size(), 1U);
  EXPECT_NE(bench_->failures.front().find("please report it"), std::string::npos);
  EXPECT_FALSE(done(first));
  EXPECT_FALSE(done(other));
}

TEST_F(SenderTest, AWriteThatNobodyPostedEndsTheConnection) {
  const SendRequest& request = send(0, 100);
  fabric::Completion completion = completion_of(0, data(0)[0]);
  completion.id = uint64_t{7} << 16 | 60000;
  sender_->on_completion(completion);
  ASSERT_EQ(bench_->failures.size(), 1U);
  EXPECT_FALSE(done(request));
}

}  // namespace
}  // namespace nccl_ha
