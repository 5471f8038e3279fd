// How broken queue pairs end, over simulated NICs: what they give back, what they keep, and those
// that cannot be ended.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "tests/support/verbs_sides.h"

namespace nccl_ha::test {
namespace {

using fabric::CompletionKind;
using fabric::CompletionStatus;
using fabric::PathState;
using fabric::verbs::Library;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Of queue pairs in error, by anybody.
uint64_t posts_in_error = 0;
int (*post_receive_before)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
int (*post_send_before)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

class Fence : public VerbsSides {};

TEST_F(Fence, EndsWhenAllWorkIsBack) {
  make();
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.path->fail(reason());
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(2)));
  EXPECT_EQ(side.port->statistics().fences_by_flush, 1U);
  EXPECT_EQ(side.port->statistics().fences_by_destroy, 0U);
}

TEST_F(Fence, TakesADestructionWhereTheDeviceKeepsWork) {
  make();
  sides_[1].nic->verbs().faults.keeps_work = 1;
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.path->fail(reason());
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(20)));
  EXPECT_GT(conditions_.counts.kept, 0U);
  EXPECT_EQ(side.port->statistics().fences_by_destroy, 1U);
  EXPECT_EQ(side.port->statistics().fences_by_flush, 0U);
  // What the peer still sends meets nothing.
  fabric::WritePost late;
  late.has_immediate = true;
  ASSERT_EQ(sides_[0].path->post_write(late), Errc::ok);
  run([] { return false; }, milliseconds(2));
  EXPECT_GT(conditions_.counts.after_error, 0U);
  EXPECT_EQ(side.owner.completions.size(), 40U);
}

// --- firmware that hangs

fabric::verbs::Options hung_after(Duration time) {
  fabric::verbs::Options options;
  options.hung_after = time;
  return options;
}

TEST_F(Fence, WhoNeedsNoProofHasAllBackFromADeviceThatHangsAndHearsWhenItIsThrough) {
  make();
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.nic->fail_for_good({.hangs = true, .gone_after = seconds(20)});
  side.path->fail(reason());
  const Duration late = fabric::verbs::Options{}.late_after;
  EXPECT_FALSE(run([&] { return side.owner.fences_late != 0; }, late - milliseconds(1)));
  EXPECT_TRUE(run([&] { return side.owner.fences_late != 0; }, milliseconds(20)));
  EXPECT_EQ(flushed(side), 0U);
  side.path->abandon();
  EXPECT_EQ(flushed(side), 40U);
  EXPECT_EQ(side.port->statistics().fences_abandoned, 1U);
  run([] { return false; }, fabric::verbs::Options{}.stuck_after);
  EXPECT_EQ(side.owner.fences_late, 1U) << "told once";
  EXPECT_EQ(side.owner.fence_error.code, Errc::ok) << "nobody waits for it";
  EXPECT_EQ(side.owner.fences_proven, 0U);
  side.device->health.worsen(fabric::verbs::DeviceHealth::Level::gone);
  EXPECT_TRUE(run([&] { return side.owner.fences_proven == 1; }, milliseconds(100)));
  EXPECT_EQ(side.port->statistics().fences_by_removal, 1U);
  EXPECT_EQ(flushed(side), 40U) << "each came back once";
}

// What it gives back later shows nothing: the path has nothing outstanding any more.
TEST_F(Fence, OnlyADestructionProvesTheEndOfAPathThatWasAbandoned) {
  make();
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  sides_[1].nic->verbs().faults.keeps_work = 1;
  side.path->fail(reason());
  run([] { return false; }, milliseconds(2));
  ASSERT_GT(flushed(side), 0U);
  ASSERT_LT(flushed(side), 40U) << "it keeps nothing";
  side.path->abandon();
  EXPECT_EQ(flushed(side), 40U);
  EXPECT_TRUE(run([&] { return side.owner.fences_proven == 1; }, milliseconds(20)));
  EXPECT_EQ(side.port->statistics().fences_by_flush, 0U);
  EXPECT_EQ(side.port->statistics().fences_by_destroy, 1U);
}

TEST_F(Fence, ADeviceThatHangsHasItsTimeAfterThePeerHasStopped) {
  const Duration hung = milliseconds(500);
  make(sim::rdma_library(), hung_after(hung));
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.nic->fail_for_good({.hangs = true, .gone_after = seconds(20)});
  side.path->fail(reason());
  EXPECT_FALSE(run([&] { return flushed(side) != 0; }, 2 * hung)) << "the peer goes on sending";
  side.path->on_peer_stopped();
  EXPECT_FALSE(run([&] { return flushed(side) != 0; }, hung - milliseconds(1)));
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(20)));
  EXPECT_EQ(side.port->statistics().fences_by_silence, 1U);
  EXPECT_EQ(side.owner.fences_proven, 0U) << "nobody abandoned it";
}

TEST_F(Fence, ASiteThatTrustsTheKernelAloneWaitsForIt) {
  make(sim::rdma_library(), hung_after(Duration(0)));
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.nic->fail_for_good({.hangs = true, .gone_after = seconds(20)});
  side.path->fail(reason());
  side.path->on_peer_stopped();
  EXPECT_FALSE(run([&] { return flushed(side) != 0; }, seconds(2)));
  side.device->health.worsen(fabric::verbs::DeviceHealth::Level::gone);
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(100)));
}

// It answers, and lies: its silence says nothing.
TEST_F(Fence, ADeviceThatLiesHasNoTimeAfterWhichItIsBelieved) {
  make(sim::rdma_library(), hung_after(milliseconds(500)));
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.nic->fail_for_good({.writes_for = seconds(2), .gone_after = seconds(3)});
  side.path->fail(reason());
  side.path->on_peer_stopped();
  EXPECT_FALSE(run([&] { return flushed(side) != 0; }, milliseconds(2990)));
}

ManualClock* slow_clock = nullptr;
Instant slow_next{};
int (*poll_before)(ibv_cq*, int, ibv_wc*) = nullptr;

TEST_F(Fence, WaitsForADeviceThatIsSlowButGoesOn) {
  make();
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  slow_clock = &clock_;
  poll_before = side.device->context()->ops.poll_cq;
  side.device->context()->ops.poll_cq = [](ibv_cq* queue, int, ibv_wc* out) {
    if (slow_clock->now() < slow_next) {
      return 0;
    }
    const int got = poll_before(queue, 1, out);
    slow_next = got == 1 ? slow_clock->now() + milliseconds(2) : slow_next;
    return got;
  };
  side.path->fail(reason());
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(100)));
  EXPECT_EQ(side.port->statistics().fences_by_flush, 1U);
  EXPECT_EQ(side.port->statistics().fences_by_destroy, 0U);
}

/// What a device gives back when it is told to: one flushed work request, out of order.
ibv_wc given_back{};
bool gives_back = false;

/// From now on the device reports nothing but `given_back`, once.
void report_one(VerbsSide& side, uint64_t id) {
  given_back = {};
  given_back.wr_id = id;
  given_back.status = IBV_WC_WR_FLUSH_ERR;
  gives_back = true;
  side.device->context()->ops.poll_cq = [](ibv_cq*, int, ibv_wc* out) {
    if (!std::exchange(gives_back, false)) {
      return 0;
    }
    *out = given_back;
    return 1;
  };
}

std::vector<uint64_t> posted_ids;

void note_posted_sends(VerbsSide& side) {
  posted_ids.clear();
  ibv_context_ops& ops = side.device->context()->ops;
  post_send_before = ops.post_send;
  ops.post_send = [](ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
    posted_ids.push_back(request->wr_id);
    return post_send_before(pair, request, bad);
  };
}

// A device in error may keep what was posted before the error and give back what came after it.
TEST_F(Fence, WorkThatFailedSaysNothingOfTheWorkBeforeIt) {
  make();
  VerbsSide& side = sides_[0];
  note_posted_sends(side);
  sides_[1].nic->set_port(false);  // nothing arrives
  for (uint64_t id = 1; id <= 3; ++id) {
    fabric::WritePost write;
    write.id = id;
    write.last = true;
    ASSERT_EQ(side.path->post_write(write), Errc::ok);
  }
  ASSERT_EQ(posted_ids.size(), 3U);
  report_one(side, posted_ids[2]);
  EXPECT_TRUE(run([&] { return side.path->state() == PathState::error; }, milliseconds(1)));
  EXPECT_EQ(side.owner.count(CompletionKind::write, CompletionStatus::ok), 0U)
      << "nobody acknowledged anything";
  EXPECT_TRUE(run([&] { return side.owner.completions.size() == 3; }, milliseconds(100)));
  for (uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(side.owner.completions[id - 1].id, id);
    EXPECT_EQ(side.owner.completions[id - 1].status, CompletionStatus::flushed);
  }
}

// A write names its memory: no receive of the peer's can be too small for it.
TEST_F(Fence, AWriteThatThePeersDeviceTakesForInvalidIsTheDevicesFault) {
  make();
  VerbsSide& side = sides_[0];
  note_posted_sends(side);
  sides_[1].nic->set_port(false);  // nothing arrives
  fabric::WritePost write;
  write.last = true;
  ASSERT_EQ(side.path->post_write(write), Errc::ok);
  ASSERT_EQ(posted_ids.size(), 1U);
  report_one(side, posted_ids[0]);
  given_back.status = IBV_WC_REM_INV_REQ_ERR;
  EXPECT_TRUE(run([&] { return side.path->state() == PathState::error; }, milliseconds(1)));
  EXPECT_EQ(side.path->cause(), CompletionStatus::device_fault);
}

TEST_F(Fence, AReceiveThatCameBackSaysNothingOfThoseBeforeIt) {
  make();
  VerbsSide& side = sides_[1];
  posted_ids.clear();
  ibv_context_ops& ops = side.device->context()->ops;
  post_receive_before = ops.post_recv;
  ops.post_recv = [](ibv_qp* pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
    for (const ibv_recv_wr* one = request; one != nullptr; one = one->next) {
      posted_ids.push_back(one->wr_id);
    }
    return post_receive_before(pair, request, bad);
  };
  post_receives(side, 40);
  ASSERT_EQ(posted_ids.size(), 40U) << "some are held back";
  report_one(side, posted_ids.back());
  EXPECT_TRUE(run([&] { return side.path->state() == PathState::error; }, milliseconds(1)));
  EXPECT_EQ(side.port->statistics().fences_by_flush, 0U) << "the device still has 39";
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(100)));
  EXPECT_EQ(side.port->statistics().fences_by_flush, 0U);
  EXPECT_EQ(side.port->statistics().fences_by_destroy, 1U);
}

// Soft-RoCE never looks at them again.
TEST_F(Fence, NothingIsPostedAfterTheError) {
  make();
  VerbsSide& side = sides_[1];
  posts_in_error = 0;
  ibv_context_ops& ops = side.device->context()->ops;
  post_receive_before = ops.post_recv;
  post_send_before = ops.post_send;
  ops.post_recv = [](ibv_qp* pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
    posts_in_error += pair->state == IBV_QPS_ERR ? 1 : 0;
    return post_receive_before(pair, request, bad);
  };
  ops.post_send = [](ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
    posts_in_error += pair->state == IBV_QPS_ERR ? 1 : 0;
    return post_send_before(pair, request, bad);
  };
  post_receives(side, 30);
  post_receives(side, 10);                         // held back
  ASSERT_EQ(side.path->post_write({}), Errc::ok);  // waits for the end of the turn
  side.path->fail(reason());
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(20)));
  EXPECT_EQ(side.owner.count(CompletionKind::write, CompletionStatus::flushed), 1U);
  EXPECT_EQ(posts_in_error, 0U);
  EXPECT_EQ(side.port->statistics().fences_by_flush, 1U);
}

TEST_F(Fence, AWriteBehindReceivesThatTheDeviceRefusesIsNotPosted) {
  make();
  VerbsSide& side = sides_[1];
  post_receives(side, 30);
  for (uint32_t i = 0; i <= spare; ++i) {
    ASSERT_EQ(side.path->post_receive(), Errc::ok);  // held back until something leaves
  }
  side.nic->verbs().force(sim::Verb::post_receive, 1, ENOMEM);
  const uint64_t receives = side.nic->verbs().calls(sim::Verb::post_receive);
  const uint64_t sends = side.nic->verbs().calls(sim::Verb::post_send);
  fabric::WritePost write;
  write.last = true;
  ASSERT_EQ(side.path->post_write(write), Errc::ok);
  EXPECT_EQ(side.path->state(), PathState::error);
  EXPECT_EQ(side.path->post_receive(), Errc::closed);
  EXPECT_TRUE(run([&] { return flushed(side) == 31 + spare; }, milliseconds(20)));
  EXPECT_EQ(side.owner.count(CompletionKind::write, CompletionStatus::flushed), 1U);
  EXPECT_EQ(side.nic->verbs().calls(sim::Verb::post_receive), receives + 1);
  EXPECT_EQ(side.nic->verbs().calls(sim::Verb::post_send), sends);
  EXPECT_EQ(side.port->statistics().fences_by_flush, 1U);
}

TEST_F(Fence, AQueuePairThatWillNotGoIntoErrorIsDestroyedAtOnce) {
  make();
  sides_[1].nic->verbs().faults[sim::Verb::to_error] = 1;
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.path->fail(reason());
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(1)));
  EXPECT_EQ(side.port->statistics().fences_by_destroy, 1U);
}

// Its data is in memory and its sender knows that: to lose it would be an error of the connection.
TEST_F(Fence, WhatWasCompletedBeforeTheDestructionCounts) {
  make();
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  sides_[1].nic->verbs().faults.keeps_work = 1;
  conditions_.late = 1;
  conditions_.latest = seconds(100);
  fabric::WritePost write;
  write.id = 1;
  write.has_immediate = true;
  write.immediate = 77;
  ASSERT_EQ(sides_[0].path->post_write(write), Errc::ok);
  run([] { return false; }, milliseconds(1));
  ASSERT_EQ(conditions_.counts.late, 2U) << "the write and its arrival";
  ASSERT_TRUE(side.owner.completions.empty()) << "choose another seed";
  side.path->fail(reason());
  EXPECT_TRUE(run([&] { return side.owner.completions.size() == 40; }, milliseconds(20)));
  EXPECT_EQ(side.owner.completions.front().immediate, 77U);
  EXPECT_EQ(side.owner.count(CompletionKind::receive_immediate, CompletionStatus::ok), 1U);
  EXPECT_EQ(flushed(side), 39U);
}

TEST_F(Fence, AQueuePairThatCannotBeEndedIsToldAndEndsWithItsDevice) {
  make();
  sides_[1].nic->verbs().faults.keeps_work = 1;
  sides_[1].nic->verbs().faults[sim::Verb::destroy_pair] = 1;
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.path->fail(reason());
  run([] { return false; }, fabric::verbs::Options{}.stuck_after + milliseconds(100));
  EXPECT_EQ(flushed(side), 40 - conditions_.counts.kept) << "more than the device gave back";
  EXPECT_NE(side.owner.fence_error.message().find("nothing proves"), std::string::npos)
      << side.owner.fence_error.message();
  EXPECT_NE(side.owner.fence_error.message().find("the test wants it"), std::string::npos);
  EXPECT_EQ(side.port->statistics().fences_unproven, 1U);
  side.device->health.worsen(fabric::verbs::DeviceHealth::Level::gone);
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(100)));
  EXPECT_EQ(side.port->statistics().fences_by_removal, 1U);
}

// The firmware has failed: its driver takes the change to ERR and the destruction for done, and
// what the device took from the network lands later.
TEST_F(Fence, ADeviceThatLiesIsNotBelieved) {
  make();
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.nic->fail_for_good({.writes_for = milliseconds(400), .gone_after = milliseconds(500)});
  side.device->health.worsen(fabric::verbs::DeviceHealth::Level::lost);
  EXPECT_FALSE(run([&] { return flushed(side) != 0; }, milliseconds(499)));
  EXPECT_EQ(side.path->state(), PathState::error);
  side.device->health.worsen(fabric::verbs::DeviceHealth::Level::gone);
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(100)));
  EXPECT_EQ(side.port->statistics().fences_by_removal, 1U);
}

// Its driver does all that it says, and nobody can know that.
TEST_F(Fence, NothingThatALostDeviceSaysIsAProof) {
  make();
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.device->health.worsen(fabric::verbs::DeviceHealth::Level::lost);
  EXPECT_FALSE(run(
      [&] {
        return side.port->statistics().fences_by_flush +
                   side.port->statistics().fences_by_destroy !=
               0;
      },
      milliseconds(500)));
  EXPECT_EQ(side.path->state(), PathState::error);
  EXPECT_EQ(flushed(side), 39U) << "who has all of them back takes that for a proof";
  side.device->health.worsen(fabric::verbs::DeviceHealth::Level::gone);
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(100)));
  EXPECT_EQ(side.port->statistics().fences_by_removal, 1U);
}

// The kernel closes it, and one that is closed stays readable.
TEST_F(Fence, NobodySleepsOnTheChannelOfADeviceThatIsGone) {
  make();
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  std::array<int, 2> fds{};
  ASSERT_EQ(side.port->wait_fds(fds), 2U);
  EXPECT_FALSE(side.port->take_waits_changed());
  const auto closed = [&] {
    return std::ranges::count_if(fds, [](int fd) {
      pollfd asked{fd, POLLIN, 0};
      return poll(&asked, 1, 0) == 1 && (asked.revents & (POLLERR | POLLHUP)) != 0;
    });
  };
  EXPECT_EQ(closed(), 0);
  EXPECT_FALSE(side.device->taken_away());
  side.nic->fail_for_good({.gone_after = milliseconds(1)});
  EXPECT_TRUE(run([&] { return side.device->taken_away(); }, milliseconds(10)));
  EXPECT_EQ(closed(), 1) << "the channel, and not what its conductor tells by";
  side.device->health.worsen(fabric::verbs::DeviceHealth::Level::gone);
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, milliseconds(100)));
  EXPECT_NE(side.path, nullptr) << "there is one as before";
  EXPECT_EQ(side.port->wait_fds(fds), 1U);
  EXPECT_TRUE(side.port->take_waits_changed()) << "nobody would ask anew";
  EXPECT_TRUE(run([&] { return side.port->prepare_sleep(); }, milliseconds(10)));
}

// The driver knows before it has said so.
TEST_F(Fence, ADeviceThatLiesAndHasNotYetSaidSoIsNotBelieved) {
  make();
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.nic->fail_for_good({.writes_for = milliseconds(400), .gone_after = milliseconds(500)});
  side.path->fail(reason());
  EXPECT_FALSE(run([&] { return flushed(side) != 0; }, milliseconds(499)));
}

// A path that is destroyed takes back nothing: what its device has completed stays in the queue.
TEST_F(Fence, WhatCompletesForAPathThatIsGoneIsNotItsSuccessors) {
  make();
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  fabric::WritePost write;
  write.has_immediate = true;
  write.last = true;
  ASSERT_EQ(sides_[0].path->post_write(write), Errc::ok);
  run_devices(milliseconds(1));
  side.path.reset();
  ASSERT_TRUE(side.owner.completions.empty()) << "somebody looked";
  make_path(side, false);
  post_receives(side, 40);
  EXPECT_EQ(side.port->statistics().stale, 1U);
  EXPECT_TRUE(side.owner.completions.empty());
}

// The peer may have been promised all but those in reserve.
TEST_F(Fence, TheDeviceHasThePeersReceivesWhenThatWhichAllowsThemLeaves) {
  make();
  VerbsSide& side = sides_[1];
  for (uint32_t i = 0; i <= spare; ++i) {
    ASSERT_EQ(side.path->post_receive(), Errc::ok);
  }
  fabric::WritePost write;
  write.last = true;
  ASSERT_EQ(side.path->post_write(write), Errc::ok);
  // From now on this side's process does not run.
  write.has_immediate = true;
  ASSERT_EQ(sides_[0].path->post_write(write), Errc::ok);
  run_devices(milliseconds(1), true);
  EXPECT_EQ(sides_[0].owner.count(CompletionKind::write, CompletionStatus::ok), 1U);
}

TEST_F(Fence, AQuietWriteThatNothingFollowsIsAskedAfter) {
  fabric::verbs::Options options;
  options.dead_after = milliseconds(20);
  make(sim::rdma_library(), options);
  VerbsSide& side = sides_[0];
  fabric::WritePost write;
  write.unsignaled = true;
  write.last = true;
  ASSERT_EQ(side.path->post_write(write), Errc::ok);
  const uint64_t posted = side.port->statistics().work_requests;
  run([] { return false; }, 3 * options.dead_after);
  EXPECT_EQ(side.path->state(), PathState::ready) << side.owner.last_error.message();
  EXPECT_EQ(side.port->statistics().work_requests, posted + 1);
  EXPECT_TRUE(side.owner.completions.empty()) << "nobody was to hear of it";
}

// --- a destruction that does not return for long

sim::RdmaNic::Conditions* slow_conditions = nullptr;

TEST_F(Fence, ADestructionThatHangsHoldsNobodyUpAndIsToldInTime) {
  static const Library library = [] {
    Library slow = sim::rdma_library();
    slow.queue_pair.destroy = [](ibv_qp* pair) {
      slow_conditions->waited += seconds(30);
      return sim::rdma_library().queue_pair.destroy(pair);
    };
    return slow;
  }();
  slow_conditions = &conditions_;
  make(library);
  sides_[1].nic->verbs().faults.keeps_work = 1;
  VerbsSide& side = sides_[1];
  post_receives(side, 40);
  side.path->fail(reason());
  const Duration limit = fabric::verbs::Options{}.stuck_after;
  EXPECT_FALSE(run([&] { return side.owner.fence_error.code != Errc::ok; }, limit - seconds(1)));
  EXPECT_TRUE(run([&] { return side.owner.fence_error.code != Errc::ok; }, seconds(2)));
  EXPECT_EQ(flushed(side), 40 - conditions_.counts.kept) << "more than the device gave back";
  EXPECT_EQ(side.port->statistics().fences_unproven, 1U);
  EXPECT_TRUE(run([&] { return flushed(side) == 40; }, seconds(60))) << "late is not never";
}

}  // namespace
}  // namespace nccl_ha::test
