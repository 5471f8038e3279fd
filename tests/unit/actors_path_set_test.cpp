#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "actors/connection/path_set.h"
#include "runtime/base/pages.h"
#include "tests/support/connection_bench.h"

namespace nccl_ha {
namespace {

/// Over datagrams of the simulated network.
class PathSetTest : public ConnectionBench, private fabric::PathOwner {
 protected:
  PathSetTest() : ConnectionBench(0) {}
  void SetUp() override {
    ConnectionBench::SetUp();
    bench_->state.domain = 7;
    bench_->state.attachment = {0, bench_->state.provider.devices()[0].kind};
    bench_->state.traits = bench_->state.provider.traits(bench_->state.attachment);
    PathSet::Needs needs;
    needs.owner = this;
    needs.source = std::shared_ptr<void>(std::shared_ptr<void>(), source_.data());
    needs.source_bytes = source_.size();
    needs.written = [this](size_t, bool) {
      return std::shared_ptr<void>(std::shared_ptr<void>(), written_.data());
    };
    needs.written_bytes = written_.size();
    needs.receives = 8;
    needs.active = true;
    paths().begin(needs);
  }
  void TearDown() override { paths().clear(); }
  void on_completion(const fabric::Completion&) override {}
  void on_path_state(fabric::Path&, fabric::PathState, const Error&) override {}
  void on_fence_stuck(fabric::Path&, const Error&) override {}
  PathSet& paths() { return bench_->paths; }
  void make(size_t count) {
    ASSERT_TRUE(paths().make_first(sim::Endpoint{sim::ip(10, 0, 0, 1), 0}.to_sockaddr(), count));
  }

  Pages source_{64};
  Pages written_{64};
};

TEST_F(PathSetTest, FirstPathsAreMadeAndEquipped) {
  make(2);
  ASSERT_EQ(paths().size(), 2U);
  EXPECT_EQ(paths().primaries(), 2U);
  for (const Lane& lane : paths().lanes()) {
    EXPECT_NE(lane.owned.path, nullptr);
    EXPECT_GT(lane.credits_open, 8U);
    EXPECT_FALSE(lane.usable) << "nobody has said that packets get through";
    EXPECT_NE(lane.control.box, nullptr);
  }
  const std::vector<PathEnd> ends = paths().ends();
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_NE(ends[0].address.length, 0U);
  EXPECT_NE(ends[0].control_address, ends[1].control_address) << "each lane has a box of its own";
}

TEST_F(PathSetTest, OwnMemoryIsRegisteredOnceForAllLanesOfADevice) {
  make(2);
  EXPECT_EQ(paths().lane(0).tables.source_key, paths().lane(1).tables.source_key);
  EXPECT_EQ(paths().lane(0).tables.own, paths().lane(1).tables.own);
}

TEST_F(PathSetTest, AUsedCreditIsReplacedTogetherWithOthers) {
  make(1);
  Lane& lane = paths().lane(0);
  lane.owned.path = std::make_unique<SilentPath>();  // the real one has all that it takes
  const uint32_t before = lane.credits_open;
  std::set<uint32_t> seen;
  for (unsigned i = 0; i < 16; ++i) {
    paths().replace_credit(lane);
    seen.insert(lane.credits_open);
  }
  EXPECT_EQ(lane.credits_open, before);
  EXPECT_LT(*seen.begin(), before) << "not one by one";
}

TEST_F(PathSetTest, APathIsFoundByItsLane) {
  make(3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(paths().index_of(paths().lane(i).owned.path.get()), i);
  }
}

TEST_F(PathSetTest, WhatIsUsableIsAskedOfPrimariesAndShadowsApart) {
  make(1);
  paths().add_shadows(1);
  EXPECT_FALSE(paths().any_usable());
  paths().lane(1).usable = true;
  EXPECT_FALSE(paths().own_usable());
  EXPECT_TRUE(paths().shadow_usable());
  EXPECT_TRUE(paths().other_usable(0));
  EXPECT_FALSE(paths().other_usable(1));
}

TEST_F(PathSetTest, AfterAllFailedNoneIsUsable) {
  make(2);
  paths().lane(0).usable = true;
  paths().fail_all(fail(Errc::closed, "over"));
  EXPECT_FALSE(paths().any_usable());
  EXPECT_EQ(paths().lane(1).owned.path->state(), fabric::PathState::error);
}

/// One that was abandoned gives nothing back of what it had.
TEST_F(PathSetTest, APathThatTakesAnothersPlaceHasNothingUnderWay) {
  make(1);
  Lane& lane = paths().lane(0);
  lane.writes_open = 3;
  lane.bytes_open = 100;
  lane.credits_owed = 2;
  lane.control.heartbeats_open = 1;
  lane.control.confirms_open = 1;
  lane.control.confirm_due = true;
  const uint32_t credits = lane.credits_open;
  ASSERT_TRUE(paths().make(lane));
  EXPECT_EQ(lane.writes_open, 0U);
  EXPECT_EQ(lane.bytes_open, 0U);
  EXPECT_EQ(lane.credits_open, credits);
  EXPECT_EQ(lane.credits_owed, 0U);
  EXPECT_EQ(lane.control.heartbeats_open, 0U) << "no heartbeat would ever be sent";
  EXPECT_EQ(lane.control.confirms_open, 0U) << "nor a confirmation";
  EXPECT_FALSE(lane.control.confirm_due);
}

TEST_F(PathSetTest, CanBeMadeAnewFromTheBeginning) {
  make(2);
  paths().clear();
  EXPECT_EQ(paths().size(), 0U);
  make(1);
  EXPECT_EQ(paths().size(), 1U);
  EXPECT_NE(paths().lane(0).owned.path, nullptr);
}

}  // namespace
}  // namespace nccl_ha
