// What a process learns from the relay node of its host, and when it takes that one for gone.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <utility>

#include "relay/mesh_client.h"
#include "runtime/engine/engine.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/ports.h"

namespace nccl_ha::relay {
namespace {

using std::chrono::milliseconds;

class MeshClientTest : public ::testing::Test {
 protected:
  static constexpr Duration interval = milliseconds(500);

  MeshClientTest() : node_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    MeshClient::Options options;
    options.port = test::bind_to_meet(node_);
    options.interval = interval;
    options.dead = 4 * interval;
    options.board = board_;
    options.on_silence = [this](Context&) {
      ++silences_;
      return false;
    };
    EXPECT_TRUE(engine_->worker(0).adopt(std::make_unique<MeshClient>(std::move(options))));
    pass(Duration(0));
  }
  ~MeshClientTest() override {
    engine_.reset();
    close(node_);
  }
  void pass(Duration time) {
    clock_.advance(time + milliseconds(1));  // of the wheel's ticks one is under way
    engine_->worker(0).turn();
  }
  /// Questions that came since the last look; each is answered where `answers`.
  int asked(bool answers) {
    int count = 0;
    std::array<std::byte, 2048> bytes;
    sockaddr_in from{};
    socklen_t length = sizeof from;
    auto* name = reinterpret_cast<sockaddr*>(&from);
    while (recvfrom(node_, bytes.data(), bytes.size(), 0, name, &length) > 0) {
      ++count;
      NeighboursPacket nobody;
      const auto answer = encode(DiscoveryPacket{NodeId{7}, 1, nobody});
      EXPECT_TRUE(!answers || sendto(node_, answer.data(), answer.size(), 0, name, length) >= 0);
    }
    return count;
  }

  int node_;
  ManualClock clock_;
  std::shared_ptr<TopologyBoard> board_ = std::make_shared<TopologyBoard>();
  int silences_ = 0;
  std::unique_ptr<Engine> engine_ =
      Engine::start_virtual(Config{}, clock_, 1, [] { return *make_uv_streams(); });
};

TEST_F(MeshClientTest, ANodeThatAnswersNoQuestionIsGone) {
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(asked(false), 1);
    EXPECT_EQ(silences_, 0) << i;
    pass(interval);
  }
  EXPECT_EQ(silences_, 1);
  pass(interval);
  EXPECT_EQ(silences_, 2) << "each time that is so";
  EXPECT_EQ(asked(true), 2);
  for (int i = 0; i < 100 && !board_->read(); ++i) {
    engine_->worker(0).turn();  // not each one looks at streams
  }
  pass(interval);
  EXPECT_EQ(silences_, 2) << "it answers again";
  ASSERT_TRUE(board_->read());
  EXPECT_EQ(board_->read()->self, NodeId{7});
}

TEST_F(MeshClientTest, ANodeThatComesBackAtItsPortIsHeard) {
  EXPECT_EQ(asked(false), 1);
  sockaddr_in place{};
  socklen_t length = sizeof place;
  ASSERT_EQ(getsockname(node_, reinterpret_cast<sockaddr*>(&place), &length), 0);
  close(node_);
  for (int i = 0; i < 4; ++i) {
    pass(interval);  // each question is refused
    for (int turn = 0; turn < 100; ++turn) {
      engine_->worker(0).turn();
    }
  }
  const int silences = silences_;
  EXPECT_GE(silences, 1);
  node_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ASSERT_EQ(bind(node_, reinterpret_cast<sockaddr*>(&place), sizeof place), 0);
  int heard = 0;
  for (int i = 0; i < 4 && heard == 0; ++i) {  // the refusal of an earlier one may come late
    pass(interval);
    heard = asked(true);
  }
  EXPECT_EQ(heard, 1);
  for (int i = 0; i < 1000 && !board_->read(); ++i) {
    engine_->worker(0).turn();
  }
  EXPECT_TRUE(board_->read()) << "what it says is not heard";
}

TEST_F(MeshClientTest, WhatThisThreadSleepsThroughIsNoSilence) {
  EXPECT_EQ(asked(true), 1);
  for (int i = 0; i < 3; ++i) {
    pass(100 * interval);
    EXPECT_EQ(silences_, 0) << i;
  }
}

}  // namespace
}  // namespace nccl_ha::relay
