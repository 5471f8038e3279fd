// What a relay lets through, of a neighbour that may send anything.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "relay/egress.h"
#include "relay/forwarder.h"
#include "relay/message_sender.h"
#include "runtime/engine/engine.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/memory_hops.h"
#include "tests/support/silent_path.h"

namespace nccl_ha::relay {
namespace {

constexpr uint32_t chunk = 2048;
constexpr NodeId from_node{1};
constexpr NodeId to_node{2};

/// Two hops that complete nothing, and a direction between them.
class Forwarding : public testing::Test {
 protected:
  void SetUp() override {
    for (HopLine* line : {&from_, &to_}) {
      line->allocate(slots_min, chunk, slots_min);
      ASSERT_TRUE(line->enter({}, made_with_));
      auto hop = std::make_unique<SilentPath>();
      (line == &to_ ? out_ : in_) = hop.get();
      line->take({nullptr, std::move(hop)}, {});
      ASSERT_TRUE(line->connect({}, {4096, 7, frame_header_bytes + chunk, slots_min}, chunk));
    }
    Forwarder::Options options;
    options.session = 5;
    options.origin = from_node;
    options.destination = to_node;
    options.hops = 2;
    forwarder_.open(options);
  }
  Frame piece(uint32_t bytes) const {
    Frame frame;
    frame.origin = from_node;
    frame.destination = to_node;
    frame.session = 5;
    frame.hops = 2;
    frame.payload_bytes = bytes;
    frame.message_bytes = bytes;
    frame.flags = frame_last;
    return frame;
  }
  Result<void> arrive(const Frame& frame) {
    fabric::Completion completion;
    completion.has_immediate = true;
    completion.immediate = arrived_;
    const auto arrival = from_.on_receive(completion);
    EXPECT_TRUE(arrival.slot);
    ++arrived_;
    encode(frame, from_.slot(*arrival.slot));
    return forwarder_.on_frame(*arrival.slot);
  }

  test::MemoryHops hops_;
  fabric::PathOptions made_with_;
  HopLine from_{hops_};
  HopLine to_{hops_};
  SilentPath* in_ = nullptr;
  SilentPath* out_ = nullptr;
  Forwarder forwarder_{from_, to_};
  uint32_t arrived_ = 0;
};

TEST_F(Forwarding, PassesOnWhatBelongsToTheSession) {
  ASSERT_TRUE(arrive(piece(chunk)));
  ASSERT_EQ(out_->posts.size(), 1U);
  EXPECT_EQ(out_->posts[0].gathers[0].length, frame_header_bytes + chunk);
  EXPECT_EQ(out_->posts[0].remote_address, 4096U);
}

TEST_F(Forwarding, APieceLongerThanWasAgreedIsRefused) {
  // It fits into this host's slot, but not into the one of a host further on.
  from_.agree(1024);
  ASSERT_TRUE(arrive(piece(1024)));
  EXPECT_FALSE(arrive(piece(1025)));
  EXPECT_EQ(out_->posts.size(), 1U);
}

TEST_F(Forwarding, WhatBelongsToAnotherSessionIsRefused) {
  const auto refused = [&](const auto& change) {
    Frame frame = piece(8);
    change(frame);
    const bool good = arrive(frame).ok();
    from_.release();
    return !good;
  };
  EXPECT_TRUE(refused([](Frame& frame) { ++frame.session; }));
  EXPECT_TRUE(refused([](Frame& frame) { frame.origin = NodeId{9}; }));
  EXPECT_TRUE(refused([](Frame& frame) { frame.destination = NodeId{9}; }));
  EXPECT_TRUE(refused([](Frame& frame) { frame.hop = 1; }));
  EXPECT_TRUE(refused([](Frame& frame) { frame.hops = 3; }));
  EXPECT_TRUE(refused([](Frame& frame) {
    frame.kind = FrameKind::note;
    frame.payload_bytes = 0;
  })) << "a note is the last relay's to write";
  EXPECT_TRUE(out_->posts.empty());
}

/// HA_NCCL_MESH_STORE_AND_FORWARD: whole messages, but for what has no room here.
TEST_F(Forwarding, AMessageLongerThanAllSlotsLeavesBeforeItsEnd) {
  Forwarder::Options options;
  options.session = 5;
  options.origin = from_node;
  options.destination = to_node;
  options.hops = 2;
  options.store = true;
  forwarder_.open(options);
  Frame part = piece(8);
  part.message_bytes = 8 * (slots_min + 1);
  part.flags = 0;
  for (uint16_t slot = 0; slot < slots_min; ++slot) {
    EXPECT_TRUE(out_->posts.empty()) << slot;
    ASSERT_TRUE(arrive(part));
  }
  EXPECT_EQ(out_->posts.size(), slots_min) << "its end finds no room for ever";
}

TEST_F(Forwarding, TheLastRelayTellsOfAMessageBehindItsPieces) {
  Forwarder::Options options;
  options.session = 5;
  options.origin = from_node;
  options.destination = to_node;
  options.hops = 1;
  forwarder_.open(options);
  Frame frame = piece(100);
  frame.hops = 1;
  frame.remote_address = 12345;
  frame.remote_key = 9;
  ASSERT_TRUE(arrive(frame));
  ASSERT_EQ(out_->posts.size(), 2U);
  EXPECT_EQ(out_->posts[0].remote_address, 12345U) << "where the receiver wants it";
  EXPECT_EQ(out_->posts[0].remote_key, 9U);
  EXPECT_EQ(out_->posts[0].gathers[0].length, 100U);
  EXPECT_FALSE(out_->posts[0].has_immediate);
  EXPECT_EQ(out_->posts[1].remote_address, 4096U) << "the note, in the next slot";
  EXPECT_EQ(out_->posts[1].gathers[0].length, frame_header_bytes);
}

/// Else a member that is set aside for having bytes under way would wait for acknowledgements that
/// cannot come.
TEST_F(Forwarding, WhatHasOnlyItsNoteLeftIsNotUnderWay) {
  SteadyClock clock;
  const auto engine = Engine::start_virtual(Config{}, clock, 1, [] { return *make_uv_streams(); });
  RelayCounters counters;
  const auto egress =
      std::make_shared<Egress>(engine->worker(0).context(), FairShares::Limits{}, counters);
  Forwarder::Options options;
  options.session = 5;
  options.origin = from_node;
  options.destination = to_node;
  options.hops = 1;
  forwarder_.open(options, egress);
  const auto complete = [&](uint32_t slot) {
    fabric::Completion completion;
    completion.id = out_->posts.back().id;
    ASSERT_TRUE(to_.on_sent(completion));
    forwarder_.on_sent(slot);
  };
  for (uint32_t slot = 0; slot < slots_min; ++slot) {  // until its neighbour has no free slot
    Frame frame = piece(0);
    frame.kind = FrameKind::ack;
    frame.hops = 1;
    ASSERT_TRUE(arrive(frame));
    complete(slot);
  }
  EXPECT_EQ(egress->shares().in_flight(), 0U);
  Frame frame = piece(100);
  frame.hops = 1;
  ASSERT_TRUE(arrive(frame));
  ASSERT_EQ(out_->posts.size(), slots_min + 1U) << "no note";
  EXPECT_EQ(egress->shares().in_flight(), frame_header_bytes + 100U);
  complete(0);
  EXPECT_EQ(egress->shares().in_flight(), 0U);
  EXPECT_EQ(forwarder_.waiting(), 1U) << "its note";
  forwarder_.close();
}

/// Neither what the first relay has taken, nor what nobody will ever have.
TEST(MessageSending, OnlyWhatTheOtherEndConfirmsHasArrived) {
  test::MemoryHops hops;
  HopLine hop(hops);
  fabric::PathOptions made_with;
  hop.allocate(slots_min, chunk, slots_min);
  MessageSender sender(hops, 1, 8);
  ASSERT_TRUE(hop.enter({}, made_with) && sender.enter({}, chunk, made_with));
  auto path = std::make_unique<SilentPath>();
  const SilentPath& out = *path;
  hop.take({nullptr, std::move(path)}, {});
  ASSERT_TRUE(hop.connect({}, {4096, 7, frame_header_bytes + chunk, slots_min}, chunk));
  sender.open(hop, {from_node, to_node, 5, 1, chunk});
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(sender.push(fabric::WritePost{}), Errc::ok);
  }
  ASSERT_TRUE(sender.pump());
  ASSERT_EQ(out.posts.size(), 3U);
  for (const fabric::WritePost& post : out.posts) {
    EXPECT_NE(sender.on_sent(post.id), 0U);
  }
  EXPECT_EQ(sender.arrived(), 0U);
  size_t done = 0;
  ASSERT_TRUE(sender.on_ack(2, 0, [&](const MessageSender::Message&) { ++done; }));
  EXPECT_EQ(done, 2U);
  EXPECT_EQ(sender.arrived(), 2U);
  sender.flush(0, fabric::CompletionStatus::flushed,
               [&](const MessageSender::Message&, fabric::CompletionStatus) { ++done; });
  EXPECT_EQ(done, 3U);
  EXPECT_EQ(sender.arrived(), 2U);
}

/// Its last hop is a device's, which has to be asked for keys.
class ForwardingToADevice : public Forwarding {
 protected:
  void SetUp() override {
    Forwarding::SetUp();
    const HopPlace by_device{{}, false};
    ASSERT_TRUE(from_.enter(by_device, made_with_) && to_.enter(by_device, made_with_));
    auto hop = std::make_unique<SilentPath>();
    out_ = hop.get();
    to_.reset();
    to_.take({nullptr, std::move(hop)}, by_device);
    ASSERT_TRUE(to_.connect({}, {4096, 7, frame_header_bytes + chunk, slots_min}, chunk));
    Forwarder::Options options;
    options.session = 5;
    options.origin = from_node;
    options.destination = to_node;
    options.hops = 1;
    options.ask_key = [&](uint32_t key) { asked.push_back(key); };
    forwarder_.open(options);
  }
  std::vector<uint32_t> asked;
};

/// A receiver may register and take back memory for as long as its job lasts.
TEST_F(ForwardingToADevice, KeysAreForgottenWhereThereAreMany) {
  Frame frame = piece(100);
  frame.hops = 1;
  frame.message_bytes = 1000;
  frame.flags = 0;  // a part of it: no note follows
  const auto pass_on = [&](uint32_t key) {
    frame.remote_key = key;
    ASSERT_TRUE(arrive(frame));
    static_cast<void>(forwarder_.on_key(key, 77));
    ASSERT_FALSE(out_->posts.empty());
    EXPECT_EQ(out_->posts.back().remote_key, 77U);
    forwarder_.on_sent(out_->posts.back().id);
  };
  for (uint32_t key = 1; key <= 1100; ++key) {
    ASSERT_NO_FATAL_FAILURE(pass_on(key));
  }
  ASSERT_EQ(asked.size(), 1100U);
  ASSERT_NO_FATAL_FAILURE(pass_on(1100));
  EXPECT_EQ(asked.size(), 1100U) << "the latest one is known";
  ASSERT_NO_FATAL_FAILURE(pass_on(1));
  EXPECT_EQ(asked.size(), 1101U) << "all of them are remembered for ever";
}

TEST_F(ForwardingToADevice, AKeyIsAskedForOnceAndAwaited) {
  Frame frame = piece(100);
  frame.hops = 1;
  frame.remote_key = 9;
  ASSERT_TRUE(arrive(frame) && arrive(frame));
  EXPECT_EQ(asked, std::vector<uint32_t>{9});
  EXPECT_TRUE(out_->posts.empty());
  EXPECT_FALSE(forwarder_.on_key(8, 5)) << "nobody has asked";
  ASSERT_TRUE(forwarder_.on_key(9, 77));
  ASSERT_EQ(out_->posts.size(), 4U) << "two pieces, and a note behind each";
  EXPECT_EQ(out_->posts[0].remote_key, 77U);
  EXPECT_EQ(out_->posts[2].remote_key, 77U);
  EXPECT_FALSE(forwarder_.on_key(9, 77)) << "once";
  frame.remote_key = 10;
  ASSERT_TRUE(arrive(frame));
  EXPECT_EQ(asked, (std::vector<uint32_t>{9, 10}));
  ASSERT_TRUE(forwarder_.on_key(10, 0));
  ASSERT_EQ(out_->posts.size(), 5U);
  EXPECT_EQ(out_->posts[4].gathers[0].length, frame_header_bytes + 100) << "into a slot";
}

}  // namespace
}  // namespace nccl_ha::relay
