// What a peer may write into the slots of eager messages, and what becomes of it and of what is no
// write.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "actors/connection/limits.h"
#include "actors/connection/receiver.h"
#include "runtime/base/random.h"
#include "tests/support/connection_bench.h"

namespace nccl_ha {
namespace {

class ReceiverTest : public ConnectionBench, private Receiver::Owner {
 protected:
  static constexpr uint32_t buffer_bytes = 100;

  void SetUp() override {
    ConnectionBench::SetUp();
    bench_->state.domain = 1;
    auto registered = bench_->state.provider.add_memory(bench_->state.attachment, 1, memory_.data(),
                                                        memory_.size(), false);
    ASSERT_TRUE(registered);
    registration_ = *registered;
    channel_ = std::make_unique<ReceiveChannel>(1, fabric::Attachment{});
    receiver_ = std::make_unique<Receiver>(bench_->parts(), owner(), *channel_);
  }
  void TearDown() override {
    receiver_.reset();
    static_cast<void>(bench_->state.provider.remove_memory(registration_));
  }
  Receiver::Owner& owner() { return *this; }
  void on_posted_alone() override {}
  void on_open_changed() override { waits_.push_back(receiver_->announcer().waits()); }

  /// A group with a buffer for each tag.
  ReceiveRequest& post(const std::vector<int>& tags) {
    ReceiveRequest* request = channel_->acquire();
    request->count = static_cast<uint8_t>(tags.size());
    for (size_t i = 0; i < tags.size(); ++i) {
      request->buffers[i] = {memory_.data() + (posted_++ % 64) * buffer_bytes,
                             buffer_bytes,
                             registration_.remote_key,
                             tags[i],
                             {}};
    }
    channel_->submit(*request);
    receiver_->on_submitted();
    return *request;
  }
  void arrive(uint64_t number, const EagerHead& head) {
    tables().eager[number % eager_slots].head = head;
    receiver_->on_completion(
        arrival(0, EagerMark{static_cast<uint32_t>(number), 0}.pack(), sizeof head + head.bytes));
  }
  DataTables& tables() { return *reinterpret_cast<DataTables*>(receiver_->sizes_address()); }
  static bool done(const ReceiveRequest& request) {
    return request.state.load() == RequestState::done;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(size_t{64} * buffer_bytes);
  fabric::Registration registration_;
  std::unique_ptr<ReceiveChannel> channel_;
  std::unique_ptr<Receiver> receiver_;
  size_t posted_ = 0;
  std::vector<bool> waits_;  ///< for a path, each time that this may have changed
};

TEST_F(ReceiverTest, AMessageWithAPlaceGoesThere) {
  const ReceiveRequest& group = post({1, 2, 1});
  arrive(0, {0, 1, 5, 2, 0});
  EXPECT_FALSE(done(group));
  EXPECT_EQ(group.bytes[2], 5U);
  arrive(1, {0, 1, 6, EagerHead::unplaced, 0});
  EXPECT_EQ(group.bytes[0], 6U) << "one without gets the first that is free";
  arrive(2, {0, 2, 7, 1, 0});
  EXPECT_TRUE(done(group));
  EXPECT_TRUE(bench_->failures.empty());
}

TEST_F(ReceiverTest, WhatNoSenderCanMeanEndsTheConnection) {
  const std::vector<std::function<void()>> faults{
      [&] {
        arrive(0, {2, 1, 5, EagerHead::unplaced, 0});
      },  // it cannot know so many groups
      [&] {
        arrive(0, {1, 1, 5, 0, 0});
      },  // nor has that one been posted
      [&] {
        arrive(0, {0, 1, 5, 1, 0});
      },  // there is no such place
      [&] {
        arrive(0, {0, 2, 5, 0, 0});
      },  // it has another tag
      [&] {
        arrive(eager_slots, {0, 1, 5, EagerHead::unplaced, 0});
      },  // its slot is in use
      [&] {
        arrive(0, {0, 1, 5, 0, 0});
        arrive(1, {0, 1, 5, 0, 0});  // that place is taken, and its group done
      },
      [&] {
        tables().eager[0].head = {0, 1, 5, EagerHead::unplaced, 0};
        receiver_->on_completion(arrival(0, EagerMark{0, 0}.pack(), sizeof(EagerHead) + 6));
      },
      [&] {
        receiver_->on_completion(arrival(0, EagerMark{0, 1}.pack(), 20));
      },  // of another path
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    channel_ = std::make_unique<ReceiveChannel>(1, fabric::Attachment{});
    receiver_ = std::make_unique<Receiver>(bench_->parts(), owner(), *channel_);
    bench_->failures.clear();
    post({1});
    EXPECT_TRUE(bench_->failures.empty()) << i;
    faults[i]();
    ASSERT_EQ(bench_->failures.size(), 1U) << i;
    EXPECT_NE(bench_->failures[0].find("malformed eager message"), std::string::npos)
        << i << ": " << bench_->failures[0];
  }
}

/// Whoever limits the time without a path is told of what is open, which alone needs one.
TEST_F(ReceiverTest, AnnouncementsThatCannotGoWaitOnlyWhileAReceiveIsOpen) {
  receiver_->announcer().renew();
  EXPECT_FALSE(receiver_->announcer().waits()) << "nothing is open";
  const ReceiveRequest& group = post({1});
  ASSERT_FALSE(waits_.empty());
  EXPECT_TRUE(waits_.back());
  waits_.clear();
  arrive(0, {0, 1, 5, 0, 0});
  ASSERT_TRUE(done(group));
  ASSERT_FALSE(waits_.empty());
  EXPECT_FALSE(waits_.back());
}

/// The sender may not have closed a lane for which the oldest group waits.
TEST_F(ReceiverTest, WhatWaitsForRoomIsBegunWhenTheOldestGroupIsDone) {
  const auto finish = [&](ReceiveRequest& request) {
    const auto group = static_cast<uint32_t>(request.group);
    receiver_->on_completion(
        arrival(0, Immediate{ImmediateKind::data, group, 0, 0, 0, 0}.pack(), 5));
    EXPECT_TRUE(done(request)) << request.group;
    channel_->release(request);
  };
  ReceiveRequest& oldest = post({1});
  while (receiver_->groups().has_room()) {
    finish(post({1}));
  }
  ASSERT_EQ(receiver_->groups().posted(), groups_apart_max);
  post({1});
  EXPECT_EQ(receiver_->groups().posted(), groups_apart_max) << "it waits";
  finish(oldest);
  EXPECT_EQ(receiver_->groups().completed(), groups_apart_max);
  EXPECT_EQ(receiver_->groups().posted(), groups_apart_max + 1) << "its caller may only wait";
  EXPECT_TRUE(bench_->failures.empty());
}

/// A device may let a receive be met by what no path posts: it is no empty message of the peer's.
TEST_F(ReceiverTest, WhatMeetsAReceiveWithoutAnImmediateEndsTheConnection) {
  fabric::Completion completion = arrival(0, 0, 0);
  completion.has_immediate = false;
  receiver_->on_completion(completion);
  ASSERT_EQ(bench_->failures.size(), 1U);
  EXPECT_NE(bench_->failures[0].find("a receive that is not open"), std::string::npos)
      << bench_->failures[0];
}

/// The peer may write anything at any time; whoever looks after it stays within its own memory.
TEST_F(ReceiverTest, GarbageWritesNothingElse) {
  Random random(7);
  size_t failed = 0;
  for (int round = 0; round < 300; ++round) {
    channel_ = std::make_unique<ReceiveChannel>(1, fabric::Attachment{});
    receiver_ = std::make_unique<Receiver>(bench_->parts(), owner(), *channel_);
    bench_->failures.clear();
    std::fill(memory_.begin(), memory_.end(), std::byte{0});
    std::vector<ReceiveRequest*> groups;
    for (int i = 0; i < 40 && bench_->failures.empty(); ++i) {
      if (random.chance(0.3) && groups.size() < 20) {
        groups.push_back(&post({static_cast<int>(random.below(2)), 1}));
      }
      const bool near = random.chance(0.8);
      EagerHead head;
      head.group = near ? random.below(4) : random.next();
      head.tag = static_cast<int>(random.below(3));
      head.bytes = static_cast<uint16_t>(near ? random.below(buffer_bytes) : random.next());
      head.position = random.chance(0.5)
                          ? EagerHead::unplaced
                          : static_cast<uint8_t>(near ? random.below(3) : random.next());
      arrive(near ? random.below(6) : random.next(), head);
    }
    failed += bench_->failures.empty() ? 0 : 1;
    for (const ReceiveRequest* group : groups) {
      for (size_t i = 0; i < group->count; ++i) {
        EXPECT_LE(group->bytes[i], buffer_bytes) << round;
      }
    }
  }
  EXPECT_GT(failed, 100U);
}

}  // namespace
}  // namespace nccl_ha
