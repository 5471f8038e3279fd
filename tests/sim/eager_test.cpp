// Eager messages: small ones that leave before their receive is posted.
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "tests/rig/runs/pair.h"
#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using std::chrono::milliseconds;
using std::chrono::seconds;

class SimEager : public testing::Test {
 protected:
  struct Receive {
    std::vector<std::byte> bytes;
    const fabric::Registration* registration = nullptr;
    ReceiveRequest* request = nullptr;
  };

  void connect(uint64_t seed, size_t rails = 1, const Config& config = {}) {
    pair_ = std::make_unique<SimPair>(seed, sim::Link{}, config, rig::SimCables{.rails = rails});
    ASSERT_TRUE(pair_->connect()) << pair_->error();
    pass(*pair_, seconds(1));  // what stands by is there
  }
  SendRequest* send(int tag, std::string_view text) {
    SendChannel& channel = pair_->send_channel();
    SendRequest* request = channel.submit_eager(channel.match(tag), tag, text.data(), text.size());
    pair_->send_driver().submit();
    return request;
  }
  Receive& post(int tag, size_t bytes = 100) {
    Receive& one = receives_.emplace_back();
    one.bytes.resize(bytes);
    one.registration = pair_->link().register_receive(one.bytes.data(), bytes);
    one.request = pair_->receive_channel().acquire();
    one.request->count = 1;
    one.request->buffers[0] = {
        one.bytes.data(), static_cast<uint32_t>(bytes), one.registration->remote_key, tag, {}};
    pair_->receive_channel().submit(*one.request);
    pair_->receive_driver().submit();
    return one;
  }
  /// What was received, which is the caller's then.
  testing::AssertionResult gets(const Receive& receive, std::string_view text,
                                Duration within = milliseconds(10)) {
    if (!pair_->world().run_until(
            [&] { return receive.request->state.load() == RequestState::done; }, within)) {
      return testing::AssertionFailure() << "not done: " << pair_->error();
    }
    const std::string got(reinterpret_cast<const char*>(receive.bytes.data()),
                          receive.request->bytes[0]);
    pair_->receive_channel().release(*receive.request);
    return got == text ? testing::AssertionSuccess() : testing::AssertionFailure() << got;
  }
  const ConnectionCounters& sent() { return pair_->send_channel().counters(); }
  const ConnectionCounters& received() { return pair_->receive_channel().counters(); }
  void cut(bool on, size_t rail = 0) {
    sim::Link dark;
    dark.cut = on;
    pair_->set_links(dark, dark, rail);
  }

  std::deque<Receive> receives_;
  std::unique_ptr<SimPair> pair_;
};

TEST_F(SimEager, WhatCameFirstWaitsForItsReceive) {
  connect(1);
  ASSERT_NE(send(1, "one"), nullptr);
  ASSERT_NE(send(2, "two"), nullptr);
  ASSERT_NE(send(1, "three"), nullptr);
  pass(*pair_, milliseconds(1));
  EXPECT_EQ(received().eager_early.get(), 3U);
  EXPECT_TRUE(gets(post(2), "two")) << "by its tag";
  EXPECT_TRUE(gets(post(1), "one")) << "in their order";
  EXPECT_TRUE(gets(post(1), "three"));
  EXPECT_EQ(sent().eager_sends.get(), 3U);
  EXPECT_EQ(sent().sends_done.get(), 3U);
}

TEST_F(SimEager, ReceivesThatCrossThemGetTheSame) {
  connect(2);
  const Receive& first = post(1);
  ASSERT_NE(send(1, "one"), nullptr);
  EXPECT_EQ(pair_->send_channel().published_groups(), 0U) << "they do not cross";
  const Receive& second = post(1);
  ASSERT_NE(send(1, "two"), nullptr);
  EXPECT_TRUE(gets(first, "one"));
  EXPECT_TRUE(gets(second, "two"));
  EXPECT_EQ(received().eager_received.get(), 2U);
}

TEST_F(SimEager, SlotsAreUsedAgain) {
  connect(3);
  for (size_t i = 0; i < 10 * eager_slots; ++i) {
    const std::string text = "message " + std::to_string(i);
    ASSERT_NE(send(1, text), nullptr) << i;
    pass(*pair_, milliseconds(1));
    ASSERT_TRUE(gets(post(1), text)) << i;
    pass(*pair_, milliseconds(1));
  }
  EXPECT_EQ(received().eager_early.get(), 10 * eager_slots);
}

TEST_F(SimEager, AReceiverGetsWhatWasSentBeforeItsPeerLeft) {
  connect(4);
  const size_t before = actors(pair_->sender());
  ASSERT_NE(send(1, "one"), nullptr);
  ASSERT_NE(send(1, "two"), nullptr);
  pair_->send_driver().close();
  ASSERT_TRUE(
      pair_->world().run_until([&] { return actors(pair_->sender()) < before; }, milliseconds(50)));
  pass(*pair_, seconds(60));
  ASSERT_EQ(pair_->receive_channel().phase(), Phase::ready);
  EXPECT_TRUE(gets(post(1), "one"));
  const Receive& last = post(1);
  EXPECT_TRUE(gets(last, "two"));
  EXPECT_EQ(pair_->receive_channel().phase(), Phase::failed);
  EXPECT_EQ(pair_->receive_channel().failure().what, "the peer closed the connection");
}

TEST_F(SimEager, AReceiveForWhichNothingWasSentEndsWithThePeer) {
  connect(5);
  ASSERT_NE(send(1, "one"), nullptr);
  pair_->send_driver().close();
  pass(*pair_, seconds(1));
  ASSERT_EQ(pair_->receive_channel().phase(), Phase::ready);
  post(2);
  EXPECT_TRUE(pair_->world().run_until(
      [&] { return pair_->receive_channel().phase() == Phase::failed; }, milliseconds(10)));
}

TEST_F(SimEager, WhoClosesWaitsUntilTheyHaveArrived) {
  connect(6);
  const size_t before = actors(pair_->sender());
  cut(true);
  SendRequest* request = send(1, "one");
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->state.load(), RequestState::done);
  pair_->send_driver().close();
  pass(*pair_, milliseconds(900));
  EXPECT_EQ(actors(pair_->sender()), before);
  EXPECT_GT(pair_->world().network().counts().cut, 0U) << "the fault did not happen";
  cut(false);
  EXPECT_TRUE(gets(post(1), "one", seconds(5)));
  EXPECT_TRUE(
      pair_->world().run_until([&] { return actors(pair_->sender()) < before; }, seconds(1)));
}

TEST_F(SimEager, AFailoverRepeatsWhatMayNotHaveArrived) {
  for (uint64_t seed = 10; seed < 20; ++seed) {
    receives_.clear();
    connect(seed, 2);
    const bool answers_only = seed % 2 == 0;  // then it arrives, and nobody tells
    sim::Link dark;
    dark.cut = true;
    pair_->set_links(answers_only ? sim::Link{} : dark, dark);
    ASSERT_NE(send(1, "one"), nullptr);
    const Receive& first = post(1);
    EXPECT_TRUE(gets(first, "one", seconds(2))) << seed;
    ASSERT_TRUE(pair_->world().run_until([&] { return sent().sends_done.get() == 1; }, seconds(2)));
    EXPECT_EQ(sent().chunks_again.get(), 1U) << seed;
    EXPECT_GT(pair_->world().network().counts().cut, 0U) << "the fault did not happen";
    ASSERT_NE(send(1, "two"), nullptr) << seed;
    EXPECT_TRUE(gets(post(1), "two", seconds(2))) << seed;
    EXPECT_EQ(received().receives_done.get(), 2U) << "each once";
  }
}

/// Its receive may come while it is repeated, and segments of that be lost.
TEST_F(SimEager, WhatIsRepeatedLeavesWhatHasArrivedAsItIs) {
  std::string text(8000, ' ');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>('a' + (i / 100 + i) % 26);
  }
  uint64_t lost = 0;
  for (uint64_t seed = 0; seed < sim_alike(80); ++seed) {
    receives_.clear();
    Config config;
    config.dgram_mtu = 1500;
    connect(200 + seed, 2, config);
    sim::Link silent;
    silent.cut = true;
    pair_->set_links({}, silent, 0);  // it arrives, and nobody tells
    sim::Link lossy;
    lossy.drop = 0.3;
    pair_->set_links(lossy, {}, 1);
    ASSERT_NE(send(1, text), nullptr);
    ASSERT_TRUE(
        pair_->world().run_until([&] { return sent().chunks_again.get() == 1; }, seconds(2)));
    const uint64_t before = pair_->world().network().counts().dropped;
    pass(*pair_, std::chrono::microseconds(5 * seed));
    EXPECT_TRUE(gets(post(1, 8192), text, seconds(2))) << seed;
    lost += pair_->world().network().counts().dropped - before;
  }
  EXPECT_GT(lost, 0U) << "the fault did not happen";
}

TEST_F(SimEager, OneThatOvertakesAnEarlierMessageDoesNotGetItsPlace) {
  unsigned overtook = 0;
  for (const size_t rail : {0U, 1U}) {  // whichever the first message takes
    receives_.clear();
    pair_ = std::make_unique<SimPair>(33, sim::Link{}, Config{},
                                      rig::SimCables{.rails = 2, .one_device = true});
    ASSERT_TRUE(pair_->connect()) << pair_->error();
    pass(*pair_, seconds(1));
    const Receive& first = post(0, 20000);
    ASSERT_TRUE(pair_->world().run_until(
        [&] { return pair_->send_channel().published_groups() == 1; }, milliseconds(10)));
    cut(true, rail);
    ASSERT_TRUE(pair_->post_send(20000)) << "which is no eager one";
    pass(*pair_, milliseconds(1));
    ASSERT_NE(send(0, "eager"), nullptr);
    pass(*pair_, milliseconds(5));
    overtook +=
        received().eager_early.get() == 1 && first.request->state.load() == RequestState::pending
            ? 1
            : 0;
    cut(false, rail);
    EXPECT_TRUE(gets(post(0), "eager", seconds(2)));
    EXPECT_TRUE(pair_->world().run_until(
        [&] { return first.request->state.load() == RequestState::done; }, seconds(2)));
    EXPECT_EQ(first.request->bytes[0], 20000U);
  }
  EXPECT_NE(overtook, 0U) << "none did";
}

TEST_F(SimEager, AReceiveThatIsTooSmallIsAnErrorOnBothSides) {
  connect(30);
  ASSERT_NE(send(1, "too long for it"), nullptr);
  pass(*pair_, milliseconds(1));
  post(1, 5);
  ASSERT_TRUE(pair_->world().run_until(
      [&] { return pair_->send_channel().phase() == Phase::failed; }, milliseconds(100)));
  EXPECT_NE(pair_->receive_channel().failure().what.find("a send of 15 bytes (tag 1) meets a "
                                                         "receive of 5"),
            std::string::npos)
      << pair_->receive_channel().failure().what;
}

TEST_F(SimEager, MemoryThatIsNotRegisteredAnyMoreIsNotWritten) {
  connect(31);
  ReceiveRequest* request = nullptr;
  Receive& receive = post(1);
  request = receive.request;
  pass(*pair_, milliseconds(1));
  ASSERT_TRUE(pair_->link().take_back_receive(receive.registration));
  ASSERT_NE(send(1, "one"), nullptr);
  EXPECT_TRUE(pair_->world().run_until(
      [&] { return pair_->receive_channel().phase() == Phase::failed; }, milliseconds(10)));
  EXPECT_EQ(request->state.load(), RequestState::pending);
  EXPECT_EQ(receive.bytes[0], std::byte{0});
}

TEST_F(SimEager, ASettingSwitchesThemOff) {
  Config config;
  config.eager_bytes = 0;
  pair_ = std::make_unique<SimPair>(32, sim::Link{}, config);
  ASSERT_TRUE(pair_->connect()) << pair_->error();
  EXPECT_EQ(send(1, "one"), nullptr);
}

TEST_F(SimEager, BesideOthersWithLossDoublingAndReordering) {
  uint64_t eager = 0;
  uint64_t early = 0;
  for (uint64_t seed = 101; seed < 131; seed += 2) {  // of odd ones senders do not wait
    sim::Link bad;
    bad.drop = 0.02;
    bad.duplicate = 0.02;
    bad.reorder = 0.1;
    SimPair pair(seed, bad, Config{}, rig::SimCables{.rails = 2});
    ASSERT_TRUE(pair.connect()) << pair.error();
    rig::TransferPlan plan;
    plan.groups = 200;
    plan.seed = seed;
    plan.large = 0.2;
    plan.memory_returns = true;
    EXPECT_EQ(pair.transfer(plan, seconds(60)), "") << "seed " << seed;
    eager += pair.send_channel().counters().eager_sends.get();
    early += pair.receive_channel().counters().eager_early.get();
  }
  EXPECT_GT(eager, 1000U);
  EXPECT_GT(early, 100U);
}

}  // namespace
}  // namespace nccl_ha::test
