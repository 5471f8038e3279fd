#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "runtime/fabric/datagram/path_environment.h"
#include "tests/support/datagram_environment.h"

namespace nccl_ha::fabric {
namespace {

/// A path that is its own peer.
class PathEnvironmentTest : public testing::Test {
 protected:
  PathEnvironmentTest() {
    const auto own = path_->local_address();
    EXPECT_TRUE(path_->connect(std::vector<std::byte>(own.begin(), own.end())));
    pass();  // pings
    pass();  // pongs
    EXPECT_EQ(path_->state(), PathState::ready);
  }
  /// What was sent arrives.
  void pass() {
    env().flush_all();
    const GuardScope guard(env().guard);
    for (const auto& [channel, bytes] : std::exchange(world_.sent, {})) {
      for (std::span<const std::byte> left = bytes; !left.empty();) {
        const auto header = decode(left, left.size());
        ASSERT_TRUE(header);
        path_->on_frame(*header, left.subspan(header_bytes, header->payload_length));
        left = left.subspan(header_bytes + header->payload_length);
      }
    }
  }
  void stage_a_write() {
    const auto key = world_.memory.add(0, memory_.data(), memory_.size());
    WritePost post{};
    post.gather_count = 1;
    post.gathers[0] = {memory_.data(), static_cast<uint32_t>(memory_.size()), *key};
    ASSERT_EQ(path_->post_write(post), Errc::ok);
    const GuardScope guard(env().guard);
    while (path_->sendable()) {
      ASSERT_TRUE(path_->send_next());
    }
  }
  PathEnvironment& env() { return world_.env; }

  std::vector<std::byte> memory_ = std::vector<std::byte>(5000);
  test::DatagramEnvironment world_;
  std::unique_ptr<DatagramPath> path_ = world_.make_path();
};

TEST_F(PathEnvironmentTest, WhatIsStagedLeavesBeforeItsPathGoes) {
  stage_a_write();
  EXPECT_FALSE(env().stage.empty());
  path_.reset();
  EXPECT_TRUE(env().stage.empty());
  EXPECT_FALSE(world_.sent.empty());
}

TEST_F(PathEnvironmentTest, NothingOfAPathIsLeftAlthoughNothingLeaves) {
  stage_a_write();
  EXPECT_EQ(env().activity.payload_in_flight(), memory_.size());
  EXPECT_NE(env().hotel.guests(), 0U);
  world_.full = true;
  path_.reset();
  EXPECT_EQ(env().activity.payload_in_flight(), 0U) << "what comes back was counted twice";
  EXPECT_EQ(env().hotel.guests(), 0U);
  EXPECT_TRUE(env().ready.empty());
  EXPECT_TRUE(env().resends.empty());
  EXPECT_EQ(env().acks.first(), nullptr);
  EXPECT_EQ(env().paths.size(), 0U);
  EXPECT_EQ(world_.timers.size(), 0U);
}

TEST_F(PathEnvironmentTest, WhatTheKernelHasNoRoomForGoesAgain) {
  stage_a_write();
  world_.full = true;
  env().stage.flush(Channel::data);
  EXPECT_EQ(env().activity.payload_in_flight(), 0U) << "it waits for a timeout";
  EXPECT_EQ(env().hotel.guests(), 0U);
  EXPECT_FALSE(env().resends.empty());
}

TEST_F(PathEnvironmentTest, WhatAFailedPathHadInFlightIsGivenUp) {
  stage_a_write();
  path_->fail(fail(Errc::remote, "a test"));
  EXPECT_EQ(env().activity.payload_in_flight(), 0U);
  EXPECT_EQ(env().hotel.guests(), 0U);
  EXPECT_EQ(env().completions.count(), 1U);
  const auto wrong = path_->self_check();
  EXPECT_FALSE(wrong) << *wrong;
}

}  // namespace
}  // namespace nccl_ha::fabric
