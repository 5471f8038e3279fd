// Who is taken for the peer when a control stream is made anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "actors/rejoin.h"
#include "tests/rig/sim/world.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr ProcessId peer_process{4711, 7};
constexpr Secret peer_token = Secret::heard(99);

/// Answers whoever calls with `present`, in the name of `process`, but for those who call
/// `mute_at`.
class Answering final : public Actor, private AcceptorOwner, private StreamOwner {
 public:
  explicit Answering(ProcessId process, sim::Ip mute_at = 0)
      : process_(process), mute_at_(mute_at) {}
  const char* name() const override { return "answering"; }
  void start(Context& context) override {
    context_ = &context;
    const auto listening = context.streams().open_listener("");
    ASSERT_TRUE(listening) << listening.error().message();
    port = listening->port;
    auto acceptor = context.streams().adopt_listener(listening->fd, this);
    ASSERT_TRUE(acceptor) << acceptor.error().message();
    acceptor_ = std::move(*acceptor);
  }
  void on(const Message&) override {}
  void stop() override { acceptor_.reset(); }

  uint16_t port = 0;
  unsigned calls = 0;

 private:
  void on_accept(int fd) override {
    auto stream = context_->streams().adopt_fd(fd, this);
    ASSERT_TRUE(stream);
    streams_.push_back(std::move(*stream));
  }
  void on_acceptor_error(const Error&) override {}
  void on_stream_open(Stream&) override {}
  void on_stream_data(Stream& stream, std::span<const std::byte>) override {
    ++calls;
    const auto local = stream.local_address();
    ASSERT_TRUE(local);
    if (sim::Endpoint::of(reinterpret_cast<const sockaddr*>(&*local)).ip != mute_at_) {
      static_cast<void>(stream.write(encode(ControlType::present, process_)));
    }
  }
  void on_stream_closed(Stream&, const Error&) override {}

  const ProcessId process_;
  const sim::Ip mute_at_;
  Context* context_ = nullptr;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

/// Has lost its stream.
class Asking final : public Actor, private Rejoin::Owner {
 public:
  /// All ways lead to one port, from that address if there is one.
  Asking(std::vector<sim::Ip> to, uint16_t port, sim::Ip from = 0)
      : to_(std::move(to)), port_(port), from_(from) {}
  const char* name() const override { return "asking"; }
  void start(Context& context) override {
    RejoinPoint peer;
    peer.port = port_;
    peer.token = peer_token;
    peer.process = peer_process;
    std::vector<Rejoin::Way> ways;
    for (const sim::Ip ip : to_) {
      ways.push_back(way_to(ip));
    }
    context_ = &context;
    rejoin.prepare(context, ControlType::rejoin, std::move(ways), peer);
    rejoin.start(Duration(0), fail(Errc::closed, "it was lost"));
  }
  void on(const Message&) override {}
  void stop() override { rejoin.stop(); }
  Rejoin::Way way_to(sim::Ip to) const {
    Rejoin::Way way{.to = sim::Endpoint{to, port_}.to_sockaddr()};
    if (from_ != 0) {
      way.from = sim::Endpoint{from_, 0}.to_sockaddr();
    }
    return way;
  }

  Rejoin rejoin{*this};
  unsigned rejoined = 0;
  unsigned attempts = 0;

 private:
  void on_attempt() override { ++attempts; }
  Result<std::unique_ptr<Stream>> connect(const Route& route, StreamOwner* owner) override {
    return context_->peer_streams().connect_tcp(
        reinterpret_cast<const sockaddr*>(&route.to),
        route.from.ss_family == 0 ? nullptr : reinterpret_cast<const sockaddr*>(&route.from),
        owner);
  }
  uint64_t life() const override { return 0; }
  void write_unconfirmed(Stream&) override {}
  void on_rejoined(std::unique_ptr<Stream>, ControlReader) override { ++rejoined; }
  void on_peer_failed(const Refusal&) override { ADD_FAILURE(); }
  void on_peer_dead(const Error&) override { ADD_FAILURE(); }
  void on_broken(const char* what) override { ADD_FAILURE() << what; }

  const std::vector<sim::Ip> to_;
  const uint16_t port_;
  const sim::Ip from_;
  Context* context_ = nullptr;
};

class RejoinTest : public testing::Test {
 protected:
  /// Loses its stream to a peer, at whose place that process answers.
  void lose_stream(ProcessId who_answers) {
    auto one = world_.add_process(sim::ip(10, 0, 0, 1), Config{});
    auto other = world_.add_process(sim::ip(10, 0, 0, 2), Config{});
    ASSERT_TRUE(one && other);
    answer(world_, **other, who_answers);
    ask(**one, {(*other)->address}, answering_->port);
  }
  void answer(sim::World& world, sim::Process& process, ProcessId who, sim::Ip mute_at = 0) {
    auto answering = std::make_unique<Answering>(who, mute_at);
    answering_ = answering.get();
    ASSERT_TRUE(process.engine->worker(0).adopt(std::move(answering)));
    ASSERT_TRUE(world.run_until([&] { return answering_->port != 0; }, seconds(1)));
  }
  void ask(sim::Process& process, std::vector<sim::Ip> to, uint16_t port, sim::Ip from = 0) {
    auto asking = std::make_unique<Asking>(std::move(to), port, from);
    asking_ = asking.get();
    ASSERT_TRUE(process.engine->worker(0).adopt(std::move(asking)));
  }

  sim::World world_{1};
  Answering* answering_ = nullptr;  // their workers'
  Asking* asking_ = nullptr;
};

TEST_F(RejoinTest, ThePeersProcessIsTakenForThePeer) {
  lose_stream(peer_process);
  EXPECT_TRUE(world_.run_until([&] { return asking_->rejoined == 1; }, seconds(1)));
  EXPECT_FALSE(asking_->rejoin.running());
}

/// Of the same number, on a host that has been started anew.
TEST_F(RejoinTest, AnotherProcessAtItsPlaceIsNot) {
  lose_stream({peer_process.pid, peer_process.started + 1});
  EXPECT_TRUE(world_.run_until([&] { return answering_->calls == 3; }, seconds(30)));
  EXPECT_EQ(asking_->rejoined, 0U);
  EXPECT_TRUE(asking_->rejoin.running());
}

/// Something else listens there, or a host that takes connections and answers nothing.
TEST_F(RejoinTest, WhoTakesTheStreamAndSaysNothingHoldsUpTheOthersForASecond) {
  constexpr sim::Ip mute = sim::ip(10, 0, 0, 2);
  constexpr sim::Ip other = sim::ip(10, 0, 1, 2);
  auto asker = world_.add_process(sim::ip(10, 0, 0, 1), Config{});
  auto peer = world_.add_process(std::vector{mute, other}, Config{});
  ASSERT_TRUE(asker && peer);
  answer(world_, **peer, peer_process, mute);
  const Instant begin = world_.now();
  ask(**asker, {mute, other}, answering_->port);
  ASSERT_TRUE(world_.run_until([&] { return asking_->rejoined == 1; }, seconds(3)));
  EXPECT_EQ(answering_->calls, 3U) << "a rejoin and its end, and the other rejoin";
  EXPECT_GE(world_.now() - begin, ha::Redial::longest_dial) << "one at a time is spoken to";
  EXPECT_LE(world_.now() - begin, ha::Redial::longest_dial + milliseconds(20))
      << "and the next one at once";
}

/// Each dial is a descriptor, and a host has thousands of connections.
TEST_F(RejoinTest, FewWaysThatNeverLedToThePeerAreDialledAtOnce) {
  constexpr sim::Ip at_peer = sim::ip(10, 0, 0, 2);
  auto asker = world_.add_process(sim::ip(10, 0, 0, 1), Config{});
  std::vector<sim::Ip> ways;
  sim::Link cut;
  cut.cut = true;
  for (uint8_t dark = 1; dark <= 40; ++dark) {
    ways.push_back(sim::ip(10, 9, 9, dark));
  }
  ways.push_back(at_peer);
  auto peer = world_.add_process(ways, Config{});
  ASSERT_TRUE(asker && peer);
  for (const sim::Ip dark : std::span(ways).first(40)) {
    world_.network().set_link((*asker)->address, dark, cut);
  }
  answer(world_, **peer, peer_process);
  const Instant begin = world_.now();
  ask(**asker, std::move(ways), answering_->port);
  size_t most = 0;
  ASSERT_TRUE(world_.run_until(
      [&] {
        most = std::max(most, asking_->rejoin.dials());
        return asking_->rejoined == 1;
      },
      seconds(3)));
  EXPECT_EQ(most, ha::Redial::unproven_max);
  EXPECT_LE(world_.now() - begin, milliseconds(1100));
}

/// A NIC has another address than when the ways were prepared.
TEST_F(RejoinTest, AnAddressThatThisHostHasNoMoreIsNotInsistedOn) {
  constexpr sim::Ip before = sim::ip(10, 0, 0, 1);
  auto asker = world_.add_process(before, Config{});
  auto peer = world_.add_process(sim::ip(10, 0, 0, 2), Config{});
  ASSERT_TRUE(asker && peer);
  answer(world_, **peer, peer_process);
  world_.network().move_address(before, sim::ip(10, 0, 77, 1));
  const auto to = sim::Endpoint{(*peer)->address, answering_->port}.to_sockaddr();
  const auto from = sim::Endpoint{before, 0}.to_sockaddr();
  const auto refused = (*asker)->engine->worker(0).context().streams().connect_tcp(
      reinterpret_cast<const sockaddr*>(&to), reinterpret_cast<const sockaddr*>(&from), nullptr);
  ASSERT_FALSE(refused) << "it can be dialled from";
  const Instant begin = world_.now();
  ask(**asker, {(*peer)->address}, answering_->port, before);
  ASSERT_TRUE(world_.run_until([&] { return asking_->rejoined == 1; }, seconds(30)));
  EXPECT_LE(world_.now() - begin, milliseconds(100));
}

/// Where the peer can be reached may change for as long as it is looked for, and longer.
TEST_F(RejoinTest, WaysThatComeLaterAreDialledToo) {
  constexpr sim::Ip dark = sim::ip(10, 9, 9, 9);
  constexpr sim::Ip other = sim::ip(10, 0, 0, 2);
  auto asker = world_.add_process(sim::ip(10, 0, 0, 1), Config{});
  auto peer = world_.add_process(std::vector{other, dark}, Config{});
  ASSERT_TRUE(asker && peer);
  answer(world_, **peer, peer_process);
  sim::Link cut;
  cut.cut = true;
  world_.network().set_link((*asker)->address, dark, cut);
  ask(**asker, {dark}, answering_->port, (*asker)->address);
  static_cast<void>(world_.run_until([] { return false; }, seconds(5)));
  ASSERT_GE(asking_->attempts, 2U);
  ASSERT_EQ(asking_->rejoined, 0U);
  EXPECT_FALSE(asking_->rejoin.add({asking_->way_to(dark)})) << "it is known";
  for (uint8_t host = 10; host < 110; ++host) {
    const sim::Ip nobody = sim::ip(10, 9, 8, host);
    world_.network().set_link((*asker)->address, nobody, cut);
    EXPECT_TRUE(asking_->rejoin.add({asking_->way_to(nobody)}));
  }
  EXPECT_EQ(asking_->rejoin.ways(), 64U) << "no more are kept";
  ASSERT_TRUE(asking_->rejoin.add({asking_->way_to(other)}));
  asking_->rejoin.dial_now();
  EXPECT_TRUE(world_.run_until([&] { return asking_->rejoined == 1; }, seconds(10)));
}

/// Of a dial that began in the dark nothing may come for long.
TEST_F(RejoinTest, WhereANetworkIsBackAllIsDialledAtOnce) {
  sim::Link cut;
  cut.cut = true;
  for (const bool told : {true, false}) {
    SCOPED_TRACE(told);
    sim::World world(1);
    auto asker = world.add_process(sim::ip(10, 0, 0, 1), Config{});
    auto peer = world.add_process(sim::ip(10, 0, 0, 2), Config{});
    ASSERT_TRUE(asker && peer);
    answer(world, **peer, peer_process);
    world.network().set_link((*asker)->address, (*peer)->address, cut);
    ask(**asker, {(*peer)->address}, answering_->port);
    ASSERT_TRUE(world.run_until([&] { return asking_->attempts == 1; }, seconds(1)));
    static_cast<void>(world.run_until([] { return false; }, milliseconds(300)));
    world.network().set_link((*asker)->address, (*peer)->address, {});
    const Instant back = world.now();
    if (told) {
      asking_->rejoin.dial_now();
    }
    ASSERT_TRUE(world.run_until([&] { return asking_->rejoined == 1; }, seconds(3)));
    EXPECT_EQ(world.now() - back < milliseconds(20), told);
  }
}

}  // namespace
}  // namespace nccl_ha
