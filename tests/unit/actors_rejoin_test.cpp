// Who is taken for the peer when a control stream is made anew.
#include <gtest/gtest.h>

#include <memory>

#include "actors/rejoin.h"
#include "tests/rig/sim/world.h"

namespace nccl_ha {
namespace {

using std::chrono::seconds;

constexpr ProcessId peer_process{4711, 7};
constexpr Secret peer_token = Secret::heard(99);

/// Answers whoever calls with `present`, in the name of `process`.
class Answering final : public Actor, private AcceptorOwner, private StreamOwner {
 public:
  explicit Answering(ProcessId process) : process_(process) {}
  const char* name() const override { return "answering"; }
  void start(Context& context) override {
    context_ = &context;
    auto acceptor = context.streams().listen_tcp("", &port, this);
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
    stream_ = std::move(*stream);
  }
  void on_acceptor_error(const Error&) override {}
  void on_stream_open(Stream&) override {}
  void on_stream_data(Stream& stream, std::span<const std::byte>) override {
    ++calls;
    static_cast<void>(stream.write(encode(ControlType::present, process_)));
  }
  void on_stream_closed(Stream&, const Error&) override {}

  const ProcessId process_;
  Context* context_ = nullptr;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<Stream> stream_;
};

/// Has lost its stream.
class Asking final : public Actor, private Rejoin::Owner {
 public:
  Asking(sim::Ip to, uint16_t port) : to_(to), port_(port) {}
  const char* name() const override { return "asking"; }
  void start(Context& context) override {
    RejoinPoint peer;
    peer.port = port_;
    peer.token = peer_token;
    peer.process = peer_process;
    Rejoin::Way way;
    way.to = sim::Endpoint{to_, port_}.to_sockaddr();
    rejoin.prepare(context, ControlType::rejoin, {way}, peer);
    rejoin.start(Duration(0), fail(Errc::closed, "it was lost"));
  }
  void on(const Message&) override {}
  void stop() override { rejoin.stop(); }

  Rejoin rejoin{*this};
  unsigned rejoined = 0;

 private:
  void on_attempt() override {}
  uint64_t life() const override { return 0; }
  void write_unconfirmed(Stream&) override {}
  void on_rejoined(std::unique_ptr<Stream>, ControlReader) override { ++rejoined; }
  void on_peer_failed(const Refusal&) override { ADD_FAILURE(); }
  void on_peer_dead(const Error&) override { ADD_FAILURE(); }
  void on_broken(const char* what) override { ADD_FAILURE() << what; }

  const sim::Ip to_;
  const uint16_t port_;
};

class RejoinTest : public testing::Test {
 protected:
  /// Loses its stream to a peer, at whose place that process answers.
  void lose_stream(ProcessId who_answers) {
    auto one = world_.add_process(sim::ip(10, 0, 0, 1), Config{});
    auto other = world_.add_process(sim::ip(10, 0, 0, 2), Config{});
    ASSERT_TRUE(one && other);
    auto answering = std::make_unique<Answering>(who_answers);
    answering_ = answering.get();
    ASSERT_TRUE((*other)->engine->worker(0).adopt(std::move(answering)));
    ASSERT_TRUE(world_.run_until([&] { return answering_->port != 0; }, seconds(1)));
    auto asking = std::make_unique<Asking>((*other)->address, answering_->port);
    asking_ = asking.get();
    ASSERT_TRUE((*one)->engine->worker(0).adopt(std::move(asking)));
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

}  // namespace
}  // namespace nccl_ha
