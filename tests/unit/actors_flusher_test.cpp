#include <gtest/gtest.h>

#include <memory>

#include "actors/connection/flusher.h"
#include "tests/support/connection_bench.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;

/// Two shadow lanes, each on a NIC of its own.
class FlusherTest : public ConnectionBench {
 protected:
  FlusherTest() : ConnectionBench(2) {}
  void SetUp() override {
    ConnectionBench::SetUp();
    channel_ = std::make_unique<ReceiveChannel>(1, fabric::Attachment{});
    announcer_ = std::make_unique<Announcer>(bench_->parts(), groups_);
    flusher_ = std::make_unique<Flusher>(bench_->parts(), *channel_, *announcer_);
    for (Lane& lane : bench_->paths.lanes()) {
      lane.traits.placed_by_nic = true;
    }
    pass(milliseconds(1));
  }
  void TearDown() override { flusher_.reset(); }
  ReceiveRequest& begin() {
    ReceiveRequest& request = *channel_->acquire_flush();
    request.state.store(RequestState::pending);
    flusher_->flush(request);
    return request;
  }
  void answer(size_t lane, fabric::CompletionStatus status) {
    fabric::Completion completion;
    completion.path = &bench_->path(lane);
    completion.kind = fabric::CompletionKind::flush;
    completion.id = bench_->path(lane).flushes.back().id;
    completion.status = status;
    flusher_->on_completion(completion, bench_->paths.lane(lane));
  }
  static bool done(const ReceiveRequest& request) {
    return request.state.load() == RequestState::done;
  }

  OpenReceives groups_;
  std::unique_ptr<ReceiveChannel> channel_;
  std::unique_ptr<Announcer> announcer_;
  std::unique_ptr<Flusher> flusher_;
};

TEST_F(FlusherTest, IsDoneWhenEachNicHasAnswered) {
  const ReceiveRequest& request = begin();
  ASSERT_EQ(bench_->path(0).flushes.size(), 1U);
  ASSERT_EQ(bench_->path(1).flushes.size(), 1U);
  answer(0, fabric::CompletionStatus::ok);
  EXPECT_FALSE(done(request));
  answer(1, fabric::CompletionStatus::ok);
  EXPECT_TRUE(done(request));
}

TEST_F(FlusherTest, WhatTheProcessorPutInPlaceNeedsNone) {
  bench_->paths.lane(0).traits.placed_by_nic = false;
  const ReceiveRequest& request = begin();
  EXPECT_TRUE(bench_->path(0).flushes.empty());
  answer(1, fabric::CompletionStatus::ok);
  EXPECT_TRUE(done(request));
}

/// What it had under way to memory needs time, which is the only thing that helps.
TEST_F(FlusherTest, AfterANicFailedTimeHasToPass) {
  bench_->paths.lane(0).usable = false;
  flusher_->on_lane_down();
  const ReceiveRequest& request = begin();
  EXPECT_TRUE(bench_->path(1).flushes.empty());
  pass(milliseconds(9));
  EXPECT_TRUE(bench_->path(1).flushes.empty());
  pass(milliseconds(3));
  ASSERT_EQ(bench_->path(1).flushes.size(), 1U);
  answer(1, fabric::CompletionStatus::ok);
  EXPECT_TRUE(done(request));
}

TEST_F(FlusherTest, AFlushThatWasLostIsTriedAgain) {
  const ReceiveRequest& request = begin();
  bench_->paths.lane(0).usable = false;
  answer(0, fabric::CompletionStatus::flushed);
  answer(1, fabric::CompletionStatus::ok);
  EXPECT_FALSE(done(request));
  pass(milliseconds(1));
  ASSERT_EQ(bench_->path(1).flushes.size(), 2U);
  answer(1, fabric::CompletionStatus::ok);
  EXPECT_TRUE(done(request));
}

/// A path that has failed says so when it is asked, before its lane is taken down.
TEST_F(FlusherTest, WhatRefusesToBeAskedNeedsTimeToo) {
  bench_->path(0).flush_answer = Errc::closed;
  const ReceiveRequest& request = begin();
  ASSERT_EQ(bench_->path(1).flushes.size(), 1U);
  answer(1, fabric::CompletionStatus::ok);
  EXPECT_FALSE(done(request)) << "nobody has pushed what the other one brought";
  bench_->paths.lane(0).usable = false;
  pass(milliseconds(9));
  EXPECT_EQ(bench_->path(1).flushes.size(), 1U);
  pass(milliseconds(3));
  ASSERT_EQ(bench_->path(1).flushes.size(), 2U);
  answer(1, fabric::CompletionStatus::ok);
  EXPECT_TRUE(done(request));
}

/// Its device takes long with something, or has failed, and its path does not say so yet.
TEST_F(FlusherTest, AHopThatCannotBeAskedNowIsAskedAgain) {
  bench_->paths.lane(0).traits.hops = 1;
  bench_->path(0).flush_answer = Errc::again;
  const ReceiveRequest& request = begin();
  ASSERT_EQ(bench_->path(1).flushes.size(), 1U);
  answer(1, fabric::CompletionStatus::ok);
  EXPECT_FALSE(done(request));
  bench_->path(0).flush_answer = Errc::ok;
  pass(milliseconds(12));
  ASSERT_EQ(bench_->path(0).flushes.size(), 1U);
  ASSERT_EQ(bench_->path(1).flushes.size(), 2U);
  answer(0, fabric::CompletionStatus::ok);
  EXPECT_FALSE(done(request));
  answer(1, fabric::CompletionStatus::ok);
  EXPECT_TRUE(done(request));
}

TEST_F(FlusherTest, WithoutAPathItWaitsForOne) {
  bench_->paths.lane(0).usable = false;
  bench_->paths.lane(1).usable = false;
  const ReceiveRequest& request = begin();
  pass(milliseconds(50));
  EXPECT_FALSE(done(request));
  bench_->paths.lane(1).usable = true;
  flusher_->flush_waiting();
  answer(1, fabric::CompletionStatus::ok);
  EXPECT_TRUE(done(request));
}

}  // namespace
}  // namespace nccl_ha
