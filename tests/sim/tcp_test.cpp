// TCP of the simulated network: what each end sees, by itself, of deaths, cuts and middleboxes.
#include "tests/rig/sim/tcp.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "tests/rig/runs/pair.h"
#include "tests/rig/sim/network.h"
#include "tests/rig/sim/streams.h"

namespace nccl_ha::test {
namespace {

using sim::ip;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr sim::Ip one = ip(10, 0, 0, 1);
constexpr sim::Ip two = ip(10, 0, 0, 2);
constexpr Duration user_timeout = seconds(60);

/// A process with a stream, or that accepts one.
struct End : StreamOwner, AcceptorOwner {
  std::shared_ptr<sim::ProcessTie> tie = std::make_shared<sim::ProcessTie>();
  std::unique_ptr<StreamFactory> streams;
  std::unique_ptr<Acceptor> acceptor;
  std::unique_ptr<Stream> stream;
  bool open = false;
  std::string got;
  std::optional<Error> end;
  void on_stream_open(Stream&) override { open = true; }
  void on_stream_data(Stream&, std::span<const std::byte> bytes) override {
    got.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void on_stream_closed(Stream&, const Error& error) override { end = error; }
  void on_accept(int fd) override { stream = *streams->adopt_fd(fd, this); }
  void on_acceptor_error(const Error&) override {}
  void say(const std::string& text) {
    ASSERT_TRUE(stream->write(std::as_bytes(std::span(text.data(), text.size()))));
  }
};

class SimTcp : public testing::Test {
 protected:
  SimTcp() {
    clock_.set(Instant(seconds(1)));
    client_.streams = network_.make_streams(one, client_.tie, user_timeout);
    server_.streams = network_.make_streams(two, server_.tie, user_timeout + seconds(30));
    network_.same_host_as(one, one);
    server_.acceptor = *server_.streams->adopt_listener(network_.listen(two, 5000), &server_);
  }
  ~SimTcp() override {
    for (End* end : {&client_, &server_}) {
      end->stream.reset();
      end->acceptor.reset();
      end->streams.reset();
    }
  }
  void connect() {
    const auto to = sim::Endpoint{two, 5000}.to_sockaddr();
    client_.stream =
        *client_.streams->connect_tcp(reinterpret_cast<const sockaddr*>(&to), nullptr, &client_);
  }
  void pass(Duration time) {
    const Instant end = clock_.now() + time;
    while (clock_.now() < end) {
      for (int i = 0; i < 3; ++i) {
        network_.advance();
        client_.streams->turn();
        server_.streams->turn();
      }
      clock_.set(std::min(end, network_.next_event().value_or(end)));
    }
  }
  void established() {
    connect();
    pass(milliseconds(10));
    ASSERT_TRUE(client_.open);
    ASSERT_TRUE(server_.stream);
  }
  void set_cut(bool there, bool back) {
    sim::Link link;
    link.cut = there;
    network_.set_link(one, two, link);
    link.cut = back;
    network_.set_link(two, one, link);
  }

  ManualClock clock_;
  sim::Network network_{clock_, 1};
  End client_;
  End server_;
};

TEST_F(SimTcp, CarriesBytesInOrderAndEndsInGoodOrder) {
  established();
  client_.say("one ");
  client_.say("two");
  server_.say("three");
  pass(milliseconds(1));
  EXPECT_EQ(server_.got, "one two");
  EXPECT_EQ(client_.got, "three");
  client_.stream.reset();
  pass(milliseconds(1));
  ASSERT_TRUE(server_.end);
  EXPECT_EQ(server_.end->code, Errc::closed);
}

TEST_F(SimTcp, AKilledProcessLeavesAFinAndItsPortRefuses) {
  established();
  network_.tcp().process_dies(static_cast<sim::SimStreams&>(*server_.streams));
  pass(milliseconds(1));
  ASSERT_TRUE(client_.end);
  EXPECT_EQ(client_.end->code, Errc::closed);
  client_.end.reset();
  connect();
  pass(milliseconds(1));
  ASSERT_TRUE(client_.end);
  EXPECT_EQ(client_.end->sys, ECONNREFUSED);
}

TEST_F(SimTcp, WhatWasNotReadTurnsTheFinOfAKilledProcessIntoAReset) {
  established();
  client_.say("unread");
  clock_.advance(milliseconds(1));
  network_.advance();
  network_.tcp().process_dies(static_cast<sim::SimStreams&>(*server_.streams));
  pass(milliseconds(1));
  ASSERT_TRUE(client_.end);
  EXPECT_EQ(client_.end->sys, ECONNRESET);
}

TEST_F(SimTcp, AHostWithoutPowerIsSilentAndAWriterGivesUpAfterItsUserTimeout) {
  established();
  network_.vanish(two);
  network_.tcp().host_dies(two);
  client_.say("is anybody there?");
  pass(user_timeout - milliseconds(100));
  EXPECT_FALSE(client_.end);
  pass(milliseconds(200));
  ASSERT_TRUE(client_.end);
  EXPECT_EQ(client_.end->sys, ETIMEDOUT);
}

TEST_F(SimTcp, AHostThatComesBackKnowsNothingAndResets) {
  established();
  network_.vanish(two);
  network_.tcp().host_dies(two);
  pass(seconds(5));
  network_.come_back(two);
  client_.say("still there?");
  pass(milliseconds(1));
  ASSERT_TRUE(client_.end);
  EXPECT_EQ(client_.end->sys, ECONNRESET);
}

TEST_F(SimTcp, KeepaliveEndsASilentConnectionOnlyWhenNobodyAnswers) {
  established();
  pass(seconds(200));
  EXPECT_FALSE(client_.end);
  set_cut(true, true);
  pass(seconds(58));
  EXPECT_FALSE(client_.end);
  pass(seconds(14));  // ten seconds idle, then a probe every ten seconds, up to the user timeout
  ASSERT_TRUE(client_.end);
  EXPECT_EQ(client_.end->sys, ETIMEDOUT);
}

TEST_F(SimTcp, OneEndGivesUpAndTheOtherGetsAResetWhenTheNetworkHeals) {
  established();
  set_cut(false, true);  // what it says arrives, and is acknowledged in vain
  client_.say("lost");
  pass(user_timeout + milliseconds(1));
  ASSERT_TRUE(client_.end);
  EXPECT_FALSE(server_.end) << "nothing told this end";
  set_cut(true, true);
  client_.stream.reset();
  set_cut(false, false);
  server_.say("hello?");
  pass(milliseconds(1));
  ASSERT_TRUE(server_.end);
  EXPECT_EQ(server_.end->sys, ECONNRESET);
}

TEST_F(SimTcp, ALostAcknowledgementDoesNotKeepDataFromArriving) {
  established();
  set_cut(false, true);
  client_.say("arrives");
  pass(milliseconds(1));
  EXPECT_EQ(server_.got, "arrives");
  pass(seconds(3));
  set_cut(false, false);
  client_.say(" once");
  pass(seconds(10));
  EXPECT_EQ(server_.got, "arrives once");
  EXPECT_FALSE(client_.end);
}

TEST_F(SimTcp, ASilentMiddleboxThatForgotTheConnectionLooksLikeACut) {
  established();
  network_.tcp().forget_flows(one, two, false);
  client_.say("swallowed");
  pass(user_timeout + seconds(1));
  ASSERT_TRUE(client_.end);
  EXPECT_EQ(client_.end->sys, ETIMEDOUT);
  EXPECT_EQ(server_.got, "");
  EXPECT_EQ(network_.tcp().counts().forgotten, 1U);
  client_.open = false;
  connect();
  pass(milliseconds(1));
  EXPECT_TRUE(client_.open) << "new connections get through";
}

TEST_F(SimTcp, AMiddleboxForgetsWhatIsIdleAndMayReset) {
  network_.tcp().set_middlebox(one, two, {seconds(5), true, {}});
  established();
  client_.say("quick");
  pass(seconds(7));
  EXPECT_EQ(server_.got, "quick");
  client_.say("too late");
  pass(seconds(1));
  ASSERT_TRUE(client_.end);
  EXPECT_EQ(client_.end->sys, ECONNRESET);
  EXPECT_FALSE(server_.end) << "it has not sent anything";
}

TEST_F(SimTcp, ANeighbourThatDoesNotAnswerArpIsUnreachable) {
  sim::Link link;
  link.cut = true;
  link.no_neighbour = true;
  network_.set_link(one, two, link);
  connect();
  pass(seconds(4));
  ASSERT_TRUE(client_.end);
  EXPECT_EQ(client_.end->sys, EHOSTUNREACH);
}

TEST(SimProcesses, AStoppedProcessDoesNothingAndGoesOnAfterwards) {
  rig::SimPair pair(1, {});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.world().pause(pair.receiver(), pair.world().now() + seconds(2));
  EXPECT_FALSE(pair.world().runs(pair.receiver()));
  const uint64_t turns = pair.receiver().engine->worker(0).turns();
  pair.world().run_until([] { return false; }, seconds(1));
  EXPECT_EQ(pair.receiver().engine->worker(0).turns(), turns);
  pair.world().run_until([] { return false; }, seconds(2));
  EXPECT_GT(pair.receiver().engine->worker(0).turns(), turns);
  rig::TransferPlan plan;
  EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
}

TEST(SimProcesses, AKilledProcessIsNoticedByItsStream) {
  rig::SimPair pair(2, {});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.world().kill_process(pair.receiver());
  EXPECT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(1)));
}

TEST(SimProcesses, EventsThatBringForthEachOtherAreALivelock) {
  sim::World world(3);
  std::function<void()> again = [&] { world.network().call_at(world.now(), again); };
  again();
  EXPECT_FALSE(world.run_until([] { return false; }, seconds(1)));
  EXPECT_NE(world.livelock(), "");
}

}  // namespace
}  // namespace nccl_ha::test
