// The end of connections: last words get through while anything does, and nobody waits long.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "ha/close_linger.h"
#include "tests/rig/runs/pair.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using std::chrono::milliseconds;
using std::chrono::seconds;

sim::Link cut() {
  sim::Link dark;
  dark.cut = true;
  return dark;
}

/// Of the rail on which the TCP connection lies: what the receiver says does not arrive any more.
void silence_receiver(SimPair& pair, bool both = false) {
  pair.set_links(both ? cut() : sim::Link{}, cut(), 0);
}

void set_rails(SimPair& pair, const sim::Link& there, const sim::Link& back) {
  for (size_t rail = 0; rail < 2; ++rail) {
    pair.set_links(there, back, rail);
  }
}

struct Fabric {
  const char* name;
  rig::SimCables cables;
};

class Close : public testing::TestWithParam<Fabric> {
 protected:
  static std::unique_ptr<SimPair> connected(uint64_t seed, const Config& config = {}) {
    auto pair = std::make_unique<SimPair>(seed, sim::Link{}, config, GetParam().cables);
    EXPECT_TRUE(pair->connect()) << pair->error();
    pass(*pair, seconds(1));  // the shadow stands by
    return pair;
  }
};
INSTANTIATE_TEST_SUITE_P(Fabrics, Close,
                         testing::Values(Fabric{"datagrams", {.rails = 2}},
                                         Fabric{"rdma", {.rails = 2, .rdma = true}}),
                         [](const auto& one) { return one.param.name; });

/// One message has arrived, which the sender does not know: what the receiver says is lost on the
/// first rail, or on all of them.  Null: not so (a failure of the test).
SendRequest* arrived_and_not_acknowledged(SimPair& pair, bool on_all) {
  ReceiveRequest* receive = nullptr;
  pair.post_receives(1);
  for (uint16_t i = 0; i < receives_max && receive == nullptr; ++i) {
    ReceiveRequest& slot = pair.receive_channel().slot(i);
    receive = slot.state.load() == RequestState::pending ? &slot : nullptr;
  }
  EXPECT_NE(receive, nullptr);
  EXPECT_TRUE(pair.world().run_until([&] { return pair.send_channel().published_groups() != 0; },
                                     seconds(1)));
  silence_receiver(pair);
  if (on_all) {
    set_rails(pair, sim::Link{}, cut());
  }
  EXPECT_TRUE(pair.post_send(1 << 16)) << pair.error();
  EXPECT_TRUE(receive != nullptr &&
              pair.world().run_until([&] { return receive->state.load() == RequestState::done; },
                                     seconds(1)));
  for (uint16_t i = 0; i < sends_max; ++i) {
    SendRequest& slot = pair.send_channel().slot(i);
    if (slot.state.load() == RequestState::pending) {
      return &slot;
    }
  }
  ADD_FAILURE() << "its acknowledgement was not lost";
  return nullptr;
}

TEST_P(Close, WhatTheReceiverGotIsDoneAlthoughTheRailOfItsAcknowledgementsIsDead) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const auto pair = connected(seed);
    SendRequest* send = arrived_and_not_acknowledged(*pair, false);
    ASSERT_NE(send, nullptr);
    pair->receive_driver().close();
    ASSERT_TRUE(pair->world().run_until([&] { return send->state.load() == RequestState::done; },
                                        milliseconds(100)))
        << "seed " << seed << ": " << pair->error();
    EXPECT_GT(pair->world().network().counts().cut, 0U) << "the fault did not happen";
    EXPECT_TRUE(pair->world().run_until(
        [&] { return pair->send_channel().phase() == Phase::failed; }, milliseconds(100)));
    EXPECT_NE(pair->error().find("the peer closed the connection"), std::string::npos)
        << pair->error();
  }
}

TEST_P(Close, OfTheSenderReachesTheReceiverAlthoughTheStreamsRailIsDead) {
  const auto pair = connected(21);
  pair->post_receives(2);
  pass(*pair, milliseconds(10));
  silence_receiver(*pair, true);
  pair->send_driver().close();
  ASSERT_TRUE(pair->world().run_until(
      [&] { return pair->receive_channel().phase() == Phase::failed; }, milliseconds(100)));
  EXPECT_EQ(pair->receive_channel().failure().what, "the peer closed the connection");
}

TEST_P(Close, AFailureIsToldOverThePathsThatWork) {
  const auto pair = connected(22);
  pass(*pair, milliseconds(10));
  silence_receiver(*pair, true);
  pair->send_driver().report_oversize();
  ASSERT_TRUE(pair->world().run_until(
      [&] { return pair->receive_channel().phase() == Phase::failed; }, milliseconds(100)));
  EXPECT_NE(pair->receive_channel().failure().what.find("larger than the receive"),
            std::string::npos)
      << pair->receive_channel().failure().what;
}

TEST_P(Close, WhoClosesIsGoneWhenThePeerKnows) {
  const auto pair = connected(23);
  const size_t before = actors(pair->sender());
  pair->send_driver().close();
  EXPECT_TRUE(
      pair->world().run_until([&] { return actors(pair->sender()) < before; }, milliseconds(5)));
  EXPECT_EQ(pair->receive_channel().phase(), Phase::failed);
}

TEST_P(Close, OfBothSidesAtOnceEndsBoth) {
  for (const bool dead : {false, true}) {
    const auto pair = connected(24);
    const size_t sending = actors(pair->sender());
    const size_t receiving = actors(pair->receiver());
    if (dead) {
      silence_receiver(*pair, true);
    }
    pair->send_driver().close();
    pair->receive_driver().close();
    EXPECT_TRUE(pair->world().run_until(
        [&] { return actors(pair->sender()) < sending && actors(pair->receiver()) < receiving; },
        milliseconds(50)))
        << dead;
  }
}

/// Neither a path nor a stream leads to the sender, for much longer than a failover takes.
TEST_P(Close, WhatTheReceiverGotIsDoneWhenTheNetworkIsBack) {
  const auto pair = connected(27);
  const size_t before = actors(pair->receiver());
  SendRequest* send = arrived_and_not_acknowledged(*pair, true);
  ASSERT_NE(send, nullptr);
  set_rails(*pair, cut(), cut());
  pair->receive_driver().close();
  pass(*pair, seconds(8));
  ASSERT_EQ(send->state.load(), RequestState::pending) << pair->error();
  EXPECT_EQ(actors(pair->receiver()), before) << "it has something to say";
  set_rails(*pair, sim::Link{}, sim::Link{});
  ASSERT_TRUE(
      pair->world().run_until([&] { return send->state.load() == RequestState::done; }, seconds(3)))
      << pair->error();
  EXPECT_TRUE(
      pair->world().run_until([&] { return actors(pair->receiver()) < before; }, seconds(1)));
  EXPECT_NE(pair->error().find("the peer closed the connection"), std::string::npos)
      << pair->error();
}

/// The sender's as well: what it said does not reach the receiver, which asks.
TEST_P(Close, OfTheSenderIsHeardWhenTheNetworkIsBack) {
  const auto pair = connected(28);
  const size_t before = actors(pair->sender());
  pass(*pair, milliseconds(10));
  set_rails(*pair, cut(), cut());
  pair->send_driver().close();
  pass(*pair, seconds(8));
  EXPECT_EQ(pair->receive_channel().phase(), Phase::ready) << pair->error();
  set_rails(*pair, sim::Link{}, sim::Link{});
  EXPECT_TRUE(pair->world().run_until(
      [&] { return pair->receive_channel().phase() == Phase::failed; }, seconds(3)));
  EXPECT_EQ(pair->receive_channel().failure().what, "the peer closed the connection");
  EXPECT_TRUE(pair->world().run_until([&] { return actors(pair->sender()) < before; }, seconds(1)));
}

/// For what may be said in order as long as the peer would try to reach this side, for a failure
/// much shorter, and never longer than a process that ends may wait.
TEST_P(Close, APeerThatSaysNothingIsAwaitedForABoundedTime) {
  enum class End : uint8_t { in_order, then_of_the_engine, of_the_engine, in_the_middle };
  Config config;
  config.retry_budget_ms = 3000;
  const Duration patience =
      milliseconds(config.heartbeat_ms + 3 * config.rto_ms + config.retry_budget_ms);
  for (const End end :
       {End::in_order, End::then_of_the_engine, End::of_the_engine, End::in_the_middle}) {
    const auto pair = connected(25, config);
    size_t before = actors(pair->sender());
    if (end == End::in_the_middle) {
      pair->post_receives(1);
      pass(*pair, milliseconds(10));
    }
    set_rails(*pair, cut(), cut());
    if (end == End::in_the_middle) {
      ASSERT_TRUE(pair->post_send(1 << 16)) << pair->error();
    }
    const Instant begin = pair->world().now();
    if (end != End::of_the_engine) {
      pair->send_driver().close();
    }
    if (end == End::then_of_the_engine) {
      pass(*pair, milliseconds(200));
    }
    if (end == End::then_of_the_engine || end == End::of_the_engine) {
      pair->sender().engine->worker(0).ask_to_stop();
      before = actors(pair->sender());
    }
    EXPECT_TRUE(
        pair->world().run_until([&] { return actors(pair->sender()) < before; }, seconds(10)));
    const Duration limit = end == End::in_order ? patience : ha::CloseLinger::limit;
    EXPECT_LE(pair->world().now() - begin, limit + milliseconds(10)) << static_cast<int>(end);
    EXPECT_GE(pair->world().now() - begin, limit - milliseconds(10)) << static_cast<int>(end);
  }
}

/// Nothing on the stream tells of it, and its ports refuse.
TEST_P(Close, APeerWhoseProcessHasEndedIsAwaitedNoLonger) {
  const auto pair = connected(28);
  const size_t before = actors(pair->sender());
  for (size_t rail = 0; rail < 2; ++rail) {
    pair->world().network().tcp().forget_flows(pair->sender().addresses[rail],
                                               pair->receiver().addresses[rail], false);
  }
  pair->world().kill_process(pair->receiver());
  const Instant begin = pair->world().now();
  pair->send_driver().close();
  EXPECT_TRUE(
      pair->world().run_until([&] { return actors(pair->sender()) < before; }, seconds(60)));
  EXPECT_LE(pair->world().now() - begin, seconds(2));
  EXPECT_GT(pair->world().network().tcp().counts().forgotten, 0U) << "the stream told of it";
}

/// The process ends right after.
TEST_P(Close, AnEngineThatIsStoppedLetsThemSpeak) {
  for (const bool closed : {true, false}) {
    const auto pair = connected(26);
    silence_receiver(*pair, true);
    if (closed) {
      pair->receive_driver().close();
    }
    for (size_t i = 0; i < pair->receiver().engine->worker_count(); ++i) {
      Worker& worker = pair->receiver().engine->worker(i);
      static_cast<void>(worker.turn());  // as Worker::stop() does
      worker.ask_to_stop();
    }
    EXPECT_TRUE(pair->world().run_until(
        [&] {
          return pair->send_channel().phase() == Phase::failed && actors(pair->receiver()) == 0;
        },
        milliseconds(100)))
        << closed;
    EXPECT_EQ(pair->send_channel().failure().what, "the peer closed the connection");
  }
}

/// closeRecv with receives open, after deregMr: what is under way may not land.
TEST_P(Close, MemoryThatWasTakenBackStaysAsItIs) {
  const auto pair = connected(27);
  std::vector<std::byte> target(1 << 20, std::byte{0xA5});
  const auto own = pair->link().register_receive(target.data(), target.size());
  ReceiveRequest* slot = pair->receive_channel().acquire();
  slot->count = 1;
  slot->buffers[0] = {target.data(), static_cast<uint32_t>(target.size()), own->remote_key, 0};
  pair->receive_channel().submit(*slot);
  pair->receive_driver().submit();
  ASSERT_TRUE(pair->post_send(1 << 20)) << pair->error();
  // Some of it has arrived.
  ASSERT_TRUE(pair->world().run_until([&] { return target[0] != std::byte{0xA5}; }, seconds(1)));
  ASSERT_NE(slot->state.load(), RequestState::done);
  ASSERT_TRUE(pair->link().take_back_receive(own));
  pair->receive_driver().close();
  std::memset(target.data(), 0x5A, target.size());
  pass(*pair, seconds(2));
  EXPECT_EQ(std::count(target.begin(), target.end(), std::byte{0x5A}),
            static_cast<ptrdiff_t>(target.size()));
  EXPECT_EQ(pair->send_channel().phase(), Phase::failed);
}

/// The same where the range is registered once more, as by another connection: a NIC knows both by
/// one key.  The sender's process does not run, and its NIC goes on.
TEST_P(Close, MemoryThatIsRegisteredOnceMoreStaysAsItIs) {
  std::vector<std::byte> target(1 << 20, std::byte{0xA5});
  const auto pair = connected(29);
  sim::Link slow;
  slow.rate = 10'000'000;  // a tenth of a second for all of it
  pair->set_links(slow, sim::Link{}, 0);
  const auto own = pair->link().register_receive(target.data(), target.size());
  ASSERT_NE(pair->link().register_receive(target.data(), target.size()), nullptr);
  ReceiveRequest* slot = pair->receive_channel().acquire();
  slot->count = 1;
  slot->buffers[0] = {target.data(), static_cast<uint32_t>(target.size()), own->remote_key, 0};
  pair->receive_channel().submit(*slot);
  pair->receive_driver().submit();
  ASSERT_TRUE(pair->post_send(1 << 20)) << pair->error();
  ASSERT_TRUE(pair->world().run_until([&] { return target[0] != std::byte{0xA5}; }, seconds(1)));
  ASSERT_NE(slot->state.load(), RequestState::done);
  ASSERT_TRUE(pair->link().take_back_receive(own));
  pair->world().pause(pair->sender(), pair->world().now() + seconds(1));
  pair->receive_driver().close();
  pass(*pair, milliseconds(5));
  std::memset(target.data(), 0x5A, target.size());
  pass(*pair, milliseconds(500));
  EXPECT_EQ(std::count(target.begin(), target.end(), std::byte{0x5A}),
            static_cast<ptrdiff_t>(target.size()));
}

/// Control streams have a network of their own, and the rails are dark.
class CloseOverTheStream : public testing::Test {
 protected:
  void connect() {
    for (sim::Process* host : {&pair_.sender(), &pair_.receiver()}) {
      host->management = sim::ip(10, 200, 0, host == &pair_.sender() ? 1 : 2);
      pair_.world().network().same_host_as(host->address, host->management);
    }
    ASSERT_TRUE(pair_.connect()) << pair_.error();
    pass(pair_, seconds(1));
    pair_.post_receives(2);
    pass(pair_, milliseconds(10));
  }
  void darken_rails() {
    sim::Link dark;
    dark.cut = true;
    for (size_t rail = 0; rail < 2; ++rail) {
      pair_.set_links(dark, dark, rail);
    }
  }
  sim::Tcp& tcp() { return pair_.world().network().tcp(); }
  uint64_t resets() { return tcp().counts().resets; }
  /// Both ends of the stream get a reset.
  void reset_stream() {
    tcp().end_flows(pair_.sender().management, pair_.receiver().management, true);
    ASSERT_EQ(resets(), 2U) << "the fault did not happen";
  }
  /// Who writes to it gets a reset.
  void forget_stream() {
    tcp().forget_flows(pair_.sender().management, pair_.receiver().management, true);
    ASSERT_EQ(resets(), 0U);
  }
  /// A side has failed within that time because it heard of the close.
  void expect_heard(const Channel& side, Duration limit) {
    ASSERT_TRUE(pair_.world().run_until([&] { return side.phase() == Phase::failed; }, limit));
    EXPECT_EQ(side.failure().what, "the peer closed the connection");
  }

  SimPair pair_{28, sim::Link{}, Config{}, {.rails = 2, .rdma = true}};
};

/// The receiver has lost its stream and asks whether the sender lives, which stood still meanwhile
/// and closes before it answers.
TEST_F(CloseOverTheStream, IsHeardByAReceiverThatAsksWhetherTheSenderLives) {
  ASSERT_NO_FATAL_FAILURE(connect());
  darken_rails();
  pair_.world().pause(pair_.sender(), pair_.world().now() + milliseconds(150));
  ASSERT_NO_FATAL_FAILURE(reset_stream());
  pair_.send_driver().close();
  expect_heard(pair_.receive_channel(), milliseconds(160));
}

/// A firewall has forgotten the connection, and resets it when the close is written.
TEST_F(CloseOverTheStream, OfTheSenderIsSaidAgainWhereItMetAReset) {
  ASSERT_NO_FATAL_FAILURE(connect());
  darken_rails();
  ASSERT_NO_FATAL_FAILURE(forget_stream());
  pair_.send_driver().close();
  expect_heard(pair_.receive_channel(), milliseconds(10));
  EXPECT_EQ(resets(), 1U) << "the fault did not happen";
}

/// Only the connector dials: it is asked to.
TEST_F(CloseOverTheStream, OfTheReceiverIsSaidAgainWhereItMetAReset) {
  ASSERT_NO_FATAL_FAILURE(connect());
  darken_rails();
  ASSERT_NO_FATAL_FAILURE(forget_stream());
  pair_.receive_driver().close();
  expect_heard(pair_.send_channel(), milliseconds(150));
  EXPECT_GE(resets(), 1U) << "the fault did not happen";
}

/// NCCL flushes what has arrived in memory of a GPU, also when its sender needs nobody any more.
class FlushAfterClose : public testing::Test {
 protected:
  using Table = rig::SimPlugin::Table;
  FlushAfterClose() {
    Config config;
    config.ib_flush = 1;
    pair_ = std::make_unique<SimPair>(71, sim::Link{}, config, rig::SimCables{.rdma = true});
  }
  void SetUp() override {
    ASSERT_TRUE(pair_->connect()) << pair_->error();
    memory_ = const_cast<void*>(
        static_cast<const void*>(pair_->link().register_receive(in_.data(), in_.size())));
    void* receive = post();
    ASSERT_TRUE(pair_->post_send(in_.size())) << pair_->error();
    ASSERT_EQ(wait(receive), abi::NcclResult::success);
    pass(*pair_, milliseconds(1));  // its sender is through
    pair_->link().close_sender();
    pass(*pair_, milliseconds(1));
  }
  void* post() {
    std::array<void*, 1> data{in_.data()};
    std::array<size_t, 1> sizes{in_.size()};
    std::array<int, 1> tags{};
    void* request = nullptr;
    EXPECT_EQ(
        plugin().call(&Table::irecv, pair_->link().receive_comm(), 1, data.data(), sizes.data(),
                      tags.data(), &memory_, static_cast<void**>(nullptr), &request),
        abi::NcclResult::success);
    return request;
  }
  abi::NcclResult flush(void*& request) {
    std::array<void*, 1> data{in_.data()};
    std::array<int, 1> sizes{static_cast<int>(in_.size())};
    return plugin().call(&Table::iflush, pair_->link().receive_comm(), 1, data.data(), sizes.data(),
                         &memory_, &request);
  }
  /// Until it is done, or has failed.
  abi::NcclResult wait(void* request) {
    int done = 0;
    std::array<int, 1> sizes{};
    auto result = abi::NcclResult::success;
    EXPECT_TRUE(pair_->world().run_until(
        [&] {
          result = plugin().call(&Table::test, request, &done, sizes.data());
          return result != abi::NcclResult::success || done != 0;
        },
        seconds(10)));
    return result;
  }
  rig::SimPlugin& plugin() { return pair_->link().to_plugin(); }

  std::array<char, 4096> in_{};
  std::unique_ptr<SimPair> pair_;
  void* memory_ = nullptr;
};

/// Also when its path has found out that nobody is there any more.
TEST_F(FlushAfterClose, IsCarriedOut) {
  for (const Duration later : {seconds(0), seconds(2), seconds(60)}) {
    pass(*pair_, later);
    void* request = nullptr;
    ASSERT_EQ(flush(request), abi::NcclResult::success) << pair_->receive_channel().failure().what;
    ASSERT_NE(request, nullptr) << "nothing had to be flushed";
    EXPECT_EQ(wait(request), abi::NcclResult::success);
  }
  EXPECT_EQ(wait(post()), abi::NcclResult::remote_error) << "nobody will send that";
}

/// What its NIC had under way is there after 10 ms, as with one of several that fails.
TEST_F(FlushAfterClose, EndsByTimeWhereItsDeviceFails) {
  const Instant at = pair_->world().now();
  pair_->receiver().nics[0]->fail_for_good();
  void* request = nullptr;
  ASSERT_EQ(flush(request), abi::NcclResult::success) << pair_->receive_channel().failure().what;
  ASSERT_NE(request, nullptr) << "nothing had to be flushed";
  EXPECT_EQ(wait(request), abi::NcclResult::success);
  EXPECT_GE(pair_->world().now() - at, milliseconds(10));
}

}  // namespace
}  // namespace nccl_ha::test
