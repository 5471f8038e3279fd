// Connections that share control streams (docs/sessions.md) on virtual time.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/peer_session.h"
#include "tests/support/sim_sessions.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::test {
namespace {

using rig::SimLink;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(SimSession, ConnectionsOfTwoWorkersHaveOneStream) {
  make_hosts(sharing(), sharing());
  connect(64);
  EXPECT_EQ(streams(0), 1U);
  EXPECT_EQ(streams(1), 1U);
  connect(3);
  EXPECT_EQ(streams(0), 1U) << "they come while others are there";
  expect_all_transfer();
}

class SimSessionDevices : public SimSession, public testing::WithParamInterface<int64_t> {};

/// A hello waits for its queue pairs, which a device makes one after the other.
TEST_P(SimSessionDevices, ConnectionsThatWaitForTheirNicShareStreamsToo) {
  Config config = sharing();
  config.ib_qps = GetParam();
  make_hosts(config, config, 2, 2);
  connect(24);
  EXPECT_LE(streams(0), 2U) << "one for each NIC";
  EXPECT_EQ(streams_anew(), 0U);
  expect_all_transfer();
}
INSTANTIATE_TEST_SUITE_P(QueuePairs, SimSessionDevices, testing::Values(1, 3));

class SimSessionsOfOne : public SimSession, public testing::WithParamInterface<int> {};

TEST_P(SimSessionsOfOne, WhereEitherSideDoesNotShareEachHasAStreamOfItsOwn) {
  make_hosts(sharing((GetParam() & 1) != 0), sharing((GetParam() & 2) != 0));
  connect(8);
  EXPECT_EQ(streams(0), 8U);
  EXPECT_EQ(streams(1), 8U);
  expect_all_transfer();
  connect(4);
  EXPECT_EQ(streams(0), 12U);
}
INSTANTIATE_TEST_SUITE_P(Sides, SimSessionsOfOne, testing::Range(0, 3));

TEST_F(SimSession, WithoutFailoverThereIsNone) {
  Config config = sharing();
  config.enable_backup = false;
  make_hosts(config, sharing());
  connect(4);
  EXPECT_EQ(streams(0), 4U) << "the end of its stream ends such a connection";
}

TEST_F(SimSession, OneThatClosesLeavesTheOthersTheirStream) {
  make_hosts(sharing(), sharing());
  connect(4);
  links_.front()->close_sender();
  links_.front()->close_receiver();
  links_.erase(links_.begin());
  pass(seconds(2));
  EXPECT_FALSE(any_failed()) << first_error();
  EXPECT_EQ(streams_anew(), 0U);
  EXPECT_EQ(streams(0), 1U);
  expect_all_transfer();
  for (const auto& link : links_) {
    link->close_sender();
    link->close_receiver();
  }
  EXPECT_TRUE(run_until([&] { return streams(0) == 0 && streams(1) == 0; }, seconds(5)))
      << "the last one leaves it";
}

TEST_F(SimSession, ASetUpThatFailsEndsAlone) {
  make_hosts(sharing(), sharing());
  connect(3);
  // Nothing listens there with that nonce.
  SimLink vain(world_, *hosts_[0], hosts_[1]->address, links_.front()->handle().port);
  ASSERT_TRUE(run_until([&] { return vain.sender().phase() == Phase::failed; }, seconds(10)));
  EXPECT_NE(vain.error().find("nothing listens there"), std::string::npos) << vain.error();
  EXPECT_FALSE(any_failed()) << first_error();
  EXPECT_EQ(streams_anew(), 0U);
  EXPECT_EQ(streams(0), 1U);
  expect_all_transfer();
}

/// It is the first of a stream, which the others wait for.
TEST_F(SimSession, AFirstOneThatFailsHoldsUpNoOther) {
  make_hosts(sharing(), sharing());
  connect(1);
  const uint16_t port = links_.front()->handle().port;
  links_.front()->close_sender();
  links_.front()->close_receiver();
  ASSERT_TRUE(run_until([&] { return streams(0) == 0; }, seconds(5)));
  SimLink vain(world_, *hosts_[0], hosts_[1]->address, port);
  const auto closed = std::move(links_.front());
  links_.clear();
  const Instant begin = world_.now();
  connect(4);
  EXPECT_LE(world_.now() - begin, milliseconds(100));
  EXPECT_EQ(vain.sender().phase(), Phase::failed);
  EXPECT_EQ(streams(0), 1U);
  expect_all_transfer();
}

class SimSessionStreams : public SimSession, public testing::WithParamInterface<bool> {};

/// Reset, or ended with a FIN that neither host has sent.
TEST_P(SimSessionStreams, AStreamThatBreaksIsDialledOnceForAll) {
  make_hosts(sharing(), sharing());
  connect(16);
  end_flows(GetParam());
  size_t most = 0;
  ASSERT_TRUE(run_until(
      [&] {
        most = std::max(most, streams(0));
        return streams_anew() == 1;
      },
      seconds(5)));
  EXPECT_LE(most, 2U) << "one, and the other hosts' probe";
  pass(seconds(1));
  EXPECT_EQ(streams(0), 1U);
  EXPECT_EQ(streams_anew(), 1U);
  EXPECT_FALSE(any_failed()) << first_error();
  expect_all_transfer();
}
INSTANTIATE_TEST_SUITE_P(Ends, SimSessionStreams, testing::Bool());

TEST_F(SimSession, OnesThatComeWhileTheStreamIsBrokenGetAnotherOne) {
  make_hosts(sharing(), sharing());
  connect(8);
  end_flows(true);
  connect(8);
  ASSERT_TRUE(run_until([&] { return streams(0) <= 2; }, seconds(5)));
  expect_all_transfer();
}

TEST_F(SimSession, APeerThatIsKilledEndsAllInTime) {
  make_hosts(sharing(), sharing());
  connect(16);
  const Instant begin = world_.now();
  world_.kill_process(*hosts_[1]);
  ASSERT_TRUE(run_until(
      [&] { return std::ranges::all_of(links_, [](const auto& one) { return one->failed(); }); },
      seconds(5)));
  EXPECT_LE(world_.now() - begin, milliseconds(450));
}

/// While the network is away dials are renewed, though others wait for the same one.
TEST_F(SimSession, ANetworkThatIsBackIsFoundSoonByAll) {
  make_hosts(sharing(), sharing());
  connect(12);
  sim::Link away;
  away.cut = true;
  world_.network().set_link(hosts_[0]->address, hosts_[1]->address, away);
  world_.network().set_link(hosts_[1]->address, hosts_[0]->address, away);
  end_flows(true);
  pass(seconds(9));
  world_.network().set_link(hosts_[0]->address, hosts_[1]->address, {});
  world_.network().set_link(hosts_[1]->address, hosts_[0]->address, {});
  end_flows(true);
  const Instant back = world_.now();
  ASSERT_TRUE(run_until([&] { return streams_anew() >= 1; }, seconds(20)));
  EXPECT_LE(world_.now() - back, milliseconds(1500));
  EXPECT_FALSE(any_failed()) << first_error();
  expect_all_transfer();
  EXPECT_LE(streams(0), 2U);
}

/// By a middlebox that forgets connections and is silent about it.
TEST_F(SimSession, AStreamThatHasGoneSilentIsLeft) {
  make_hosts(sharing(), sharing(), 2);
  connect(6);
  world_.network().tcp().forget_flows(hosts_[0]->address, hosts_[1]->address, false);
  world_.tell_link(*hosts_[0], hosts_[0]->addresses[0], false);  // a failover needs messages
  pass(seconds(2));
  world_.tell_link(*hosts_[0], hosts_[0]->addresses[0], true);
  connect(2);
  EXPECT_FALSE(any_failed()) << first_error();
  expect_all_transfer();
}

TEST_F(SimSession, KeysAreShownOnceForAll) {
  const tests::TemporaryFolder folder;
  const std::string path = folder.path() + "/keys";
  std::ofstream(path) << "1 " << std::string(64, 'a') << "\n";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  Config config = sharing();
  config.key_file = path;
  make_hosts(config, config);
  connect(8);
  EXPECT_EQ(streams(0), 1U);
  expect_all_transfer();
  end_flows(true);
  ASSERT_TRUE(run_until([&] { return streams_anew() == 1; }, seconds(5)));
  expect_all_transfer();
  connect(2);
  expect_all_transfer();
}

TEST_F(SimSession, MoreWorkersHaveMoreStreams) {
  Config config = sharing();
  config.progress_threads = 2;
  make_hosts(config, config);
  connect(16);
  EXPECT_LE(streams(0), 4U) << "one for each pair of workers";
  EXPECT_GE(streams(0), 2U);
  expect_all_transfer();
}

TEST_F(SimSession, SlowNetworksCostTheOthersOneRoundTripEach) {
  sim::Link slow;
  slow.delay = milliseconds(50);
  world_.network().all = slow;
  make_hosts(sharing(), sharing());
  const Instant begin = world_.now();
  connect(1);
  const Duration first = world_.now() - begin;
  const Instant others = world_.now();
  connect(64);
  EXPECT_LT(world_.now() - others, first) << "none of them dials";
  EXPECT_EQ(streams(0), 1U);
}

/// Its rejoin would wait in vain in the stream that it has given up, though others still have that.
TEST_F(SimSession, WhoHasLostAStreamJoinsAYoungerOneOnly) {
  make_hosts(sharing(), sharing());
  connect(1);
  Context& context = hosts_[0]->engine->worker(0).context();
  const auto sessions = PeerSessions::of(context);
  Route route;
  route.to = sim::Endpoint{hosts_[1]->address, links_.front()->handle().port}.to_sockaddr();
  route.from = sim::Endpoint{hosts_[0]->address, 0}.to_sockaddr();
  Unasked nobody;
  const auto first = sessions->connect(route, 0, &nobody);
  ASSERT_TRUE(first) << first.error().message();
  const auto same = sessions->connect(route, 0, &nobody);
  const auto other = sessions->connect(route, (*first)->session(), &nobody);
  const auto joined = sessions->connect(route, (*first)->session(), &nobody);
  ASSERT_TRUE(same && other && joined);
  EXPECT_EQ((*same)->session(), (*first)->session());
  EXPECT_GT((*other)->session(), (*first)->session());
  EXPECT_EQ((*joined)->session(), (*other)->session());
  Route elsewhere = route;
  elsewhere.to = sim::Endpoint{hosts_[1]->address, 9}.to_sockaddr();
  const auto away = sessions->connect(elsewhere, 0, &nobody);
  ASSERT_TRUE(away);
  EXPECT_GT((*away)->session(), (*other)->session());
}

/// Takes streams, and answers the first that comes over each with those words, or not at all.
class AnsweringDoor final : public Actor, private AcceptorOwner, private StreamOwner {
 public:
  AnsweringDoor(std::vector<std::byte> answer, uint16_t* port)
      : answer_(std::move(answer)), port_(port) {}
  const char* name() const override { return "answering-door"; }
  void start(Context& context) override {
    context_ = &context;
    const auto listening = context.streams().open_listener("0");
    ASSERT_TRUE(listening);
    auto acceptor = context.streams().adopt_listener(listening->fd, this);
    ASSERT_TRUE(acceptor);
    acceptor_ = std::move(*acceptor);
    *port_ = listening->port;
  }
  void on(const Message&) override {}
  void stop() override {
    acceptor_.reset();
    streams_.clear();
  }

 private:
  void on_accept(int fd) override {
    auto stream = context_->streams().adopt_fd(fd, this);
    ASSERT_TRUE(stream);
    streams_.push_back(std::move(*stream));
  }
  void on_acceptor_error(const Error&) override {}
  void on_stream_open(Stream&) override {}
  void on_stream_data(Stream& stream, std::span<const std::byte>) override {
    if (!answer_.empty() && answered_.insert(&stream).second) {
      static_cast<void>(stream.write(answer_));
    }
  }
  void on_stream_closed(Stream&, const Error&) override {}

  const std::vector<std::byte> answer_;
  uint16_t* const port_;
  Context* context_ = nullptr;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::set<const Stream*> answered_;
};

class SimSessionOtherDoor : public SimSession {
 protected:
  void dial_with(size_t count, std::vector<std::byte> answer) {
    make_hosts(sharing(), sharing());
    uint16_t port = 0;
    ASSERT_TRUE(hosts_[1]->engine->worker(0).adopt(
        std::make_unique<AnsweringDoor>(std::move(answer), &port)));
    ASSERT_TRUE(run_until([&] { return port != 0; }, seconds(1)));
    for (size_t i = 0; i < count; ++i) {
      links_.push_back(std::make_unique<SimLink>(world_, *hosts_[0], hosts_[1]->address, port));
    }
  }
};

TEST_F(SimSessionOtherDoor, APeerOfTheVersionBeforeGetsAStreamForEachConnection) {
  Welcome welcome;
  welcome.version = first_version_with_sessions - 1;
  welcome.backup = true;
  welcome.host = "older";
  welcome.paths.emplace_back().missing = "it is none";
  dial_with(5, encode(welcome));
  pass(milliseconds(50));
  EXPECT_EQ(streams(1), 5U);
  EXPECT_FALSE(any_failed()) << first_error();
}

TEST_F(SimSessionOtherDoor, OnesThatWaitForTheFirstAnswerDialForThemselvesAfterAWhile) {
  dial_with(5, {});
  pass(ha::SessionState::patience - milliseconds(10));
  EXPECT_EQ(streams(1), 1U);
  pass(milliseconds(20));
  EXPECT_EQ(streams(1), 5U) << "all at once";
}

}  // namespace
}  // namespace nccl_ha::test
