// The phases of a connection, with a side that only writes down what it is told.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "actors/connection/connection.h"
#include "actors/endpoint.h"
#include "runtime/engine/engine.h"
#include "tests/rig/sim/world.h"
#include "tests/support/silent_path.h"

namespace nccl_ha {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// What happened, in words.
using Story = std::vector<std::string>;

class FakeSide final : public Side {
 public:
  FakeSide(const ConnectionParts& its_parts, SideOwner& its_owner, Story& story,
           SendEndpoint& endpoint)
      : parts(its_parts), owner(its_owner), story_(story), endpoint_(endpoint) {}
  ~FakeSide() override { story_.emplace_back("destroyed"); }
  const char* name() const override { return "fake"; }
  Channel* channel() override { return &endpoint_.channel; }
  Driver* driver() override { return &endpoint_.driver; }
  void begin() override { story_.emplace_back("begin"); }
  void on_stream_open(Stream&) override {}
  void on_control(const ControlReader::Message&) override {}
  void on_deadline() override { parts.state.fail(fail(Errc::timed_out, "late")); }
  void on_settled() override { story_.emplace_back("settled"); }
  void on_usable() override { story_.emplace_back("usable"); }
  void on_doorbell() override { story_.emplace_back("doorbell"); }
  void on_failure(const Error& error, bool told) override {
    story_.push_back((told ? "failed: " : "failed early: ") + error.what);
  }
  void on_peer_gone(const Error&) override {}
  void on_stream_lost(const Error&) override {}
  bool takes_streams() const override { return false; }
  bool peer_may_leave() const override { return false; }
  CloseNotice last_words() const override { return {}; }
  bool all_done() const override { return false; }
  bool exposed(const Lane&, bool) const override { return exposes; }
  std::string wanted_peer() const override { return "nobody"; }
  void on_lane_ready(size_t) override {}
  void on_lane_failed(size_t, const Error&) override {}
  void on_lane_drained(size_t) override {}
  bool told_paths() const override { return paths_told; }
  void on_first_address() override { story_.emplace_back("address"); }
  void on_lane_address(size_t lane) override {
    story_.push_back("address of " + std::to_string(lane));
  }
  void stop() override {}

  ConnectionParts parts;
  SideOwner& owner;
  bool paths_told = true;
  bool exposes = false;

 private:
  Story& story_;
  SendEndpoint& endpoint_;
};

class ConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    auto process = world_.add_process(sim::ip(10, 0, 0, 1), Config{});
    ASSERT_TRUE(process);
    engine_ = (*process)->engine;
    endpoint_ =
        std::make_unique<SendEndpoint>(1, fabric::Attachment{}, engine_->worker(0), *engine_);
    auto made = std::make_unique<Connection>(
        *(*process)->provider, *engine_, engine_->assign_worker(-1, 1.0),
        [this](const ConnectionParts& parts, SideOwner& owner) {
          auto side = std::make_unique<FakeSide>(parts, owner, story_, *endpoint_);
          side_ = side.get();
          return side;
        });
    connection_ = made.get();
    auto adopted = engine_->worker(0).adopt(std::move(made));
    ASSERT_TRUE(adopted);
    id_ = *adopted;
    auto address = engine_->worker(0).open_address(4);
    ASSERT_TRUE(address);
    endpoint_->driver.attach(id_, std::move(*address));
    pass(microseconds(10));
  }
  void pass(Duration time) {
    static_cast<void>(world_.run_until([] { return false; }, time));
  }
  /// With a lane that works, and nobody at its other end.
  void become_usable() {
    side_->parts.paths.add_shadows(1);
    side_->parts.paths.lane(0).decided = true;
    side_->parts.state.agreed = true;
    side_->owner.end_handshake();
  }
  /// Until the actor has heard of it.
  void close() {
    endpoint_->driver.close();
    pass(microseconds(10));
  }
  ConnectionPhase phase() const { return side_->parts.state.phase; }

  Engine* engine_ = nullptr;
  std::unique_ptr<SendEndpoint> endpoint_;
  Story story_;
  FakeSide* side_ = nullptr;
  Connection* connection_ = nullptr;
  ActorId id_;
  sim::World world_{1};  // its actors end first
};

TEST_F(ConnectionTest, IsUsableWhenItsFirstPathsHaveComeUp) {
  EXPECT_EQ(phase(), ConnectionPhase::handshake);
  become_usable();
  EXPECT_EQ(story_, (Story{"begin", "settled", "usable"}));
  EXPECT_EQ(phase(), ConnectionPhase::usable);
}

TEST_F(ConnectionTest, AFailureIsPublishedOnce) {
  become_usable();
  side_->parts.state.fail(fail(Errc::remote, "first"));
  side_->parts.state.fail(fail(Errc::remote, "second"));
  EXPECT_EQ(story_.back(), "failed: first");
  EXPECT_EQ(phase(), ConnectionPhase::over) << "without failover nothing lingers";
  EXPECT_EQ(endpoint_->channel.failure().what, "first");
}

TEST_F(ConnectionTest, TheHandshakeHasADeadline) {
  side_->owner.arm_deadline(milliseconds(5));
  pass(milliseconds(6));
  EXPECT_EQ(story_.back(), "failed early: late");
}

TEST_F(ConnectionTest, TheDeadlineEndsWithTheHandshake) {
  side_->owner.arm_deadline(milliseconds(5));
  become_usable();
  pass(milliseconds(6));
  EXPECT_EQ(phase(), ConnectionPhase::usable);
}

TEST_F(ConnectionTest, WithFailoverItLingersUntilItsLastWordsAreHeardOrTheTimeIsUp) {
  side_->parts.state.backup = true;
  become_usable();
  close();
  EXPECT_EQ(phase(), ConnectionPhase::lingering);
  EXPECT_TRUE(connection_->lingers());
  pass(ha::CloseLinger::limit + milliseconds(2));
  EXPECT_EQ(story_.back(), "destroyed");
}

/// What a caller knows next is that its memory is its own again.
class ConnectionEnd : public ConnectionTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ways, ConnectionEnd, testing::Values("failure", "peer", "close", "stop"),
                         [](const auto& way) { return std::string(way.param); });

TEST_P(ConnectionEnd, LeavesNoPathThatStillTakesSomething) {
  side_->parts.state.backup = true;
  become_usable();
  auto path = std::make_unique<SilentPath>();
  SilentPath& watched = *path;
  watched.on_await = [&] {
    EXPECT_EQ(endpoint_->channel.phase(), Phase::connecting) << "the caller knows already";
  };
  side_->parts.paths.lane(0).owned.path = std::move(path);
  side_->exposes = true;
  const std::string way = GetParam();
  if (way == "failure") {
    side_->parts.state.fail(fail(Errc::remote, "gone"));
  } else if (way == "peer") {
    side_->owner.part_with_peer(fail(Errc::remote, "the peer closed the connection"));
  } else if (way == "close") {
    close();
  } else {
    connection_->stop();
  }
  EXPECT_EQ(watched.state(), fabric::PathState::error);
  EXPECT_EQ(watched.stops_awaited, 1U);
}

TEST_F(ConnectionTest, WhoClosesAfterAFailureEndsIt) {
  become_usable();
  side_->parts.state.fail(fail(Errc::remote, "gone"));
  close();
  pass(milliseconds(1));
  EXPECT_EQ(story_.back(), "destroyed");
}

TEST_F(ConnectionTest, ADoorbellBeforeItIsReadyIsNotHeard) {
  endpoint_->driver.submit();
  pass(microseconds(10));
  become_usable();
  pass(microseconds(10));
  EXPECT_EQ(story_.back(), "usable");
  endpoint_->driver.submit();
  pass(microseconds(10));
  EXPECT_EQ(story_.back(), "doorbell");
}

TEST_F(ConnectionTest, TheCallersNewsAreNotLostWhenItsMailboxIsFull) {
  become_usable();
  size_t others = 0;
  while (endpoint_->driver.suspect(99)) {  // there is no such path
    ++others;
  }
  ASSERT_GT(others, 0U);
  endpoint_->driver.submit();
  endpoint_->driver.report_oversize();
  EXPECT_EQ(story_.back(), "usable");
  pass(microseconds(10));
  ASSERT_GE(story_.size(), 2U);
  EXPECT_EQ(story_[story_.size() - 2], "doorbell");
  EXPECT_EQ(story_.back().substr(0, 20), "failed: a send was l");
  // And once they were taken, it rings again.
  while (endpoint_->driver.suspect(99)) {
  }
  endpoint_->driver.close();
  pass(milliseconds(1));
  EXPECT_EQ(story_.back(), "destroyed");
}

}  // namespace
}  // namespace nccl_ha
