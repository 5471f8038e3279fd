// Faults of the emulated NIC.
#include <utility>

#include "tests/nic/nic_world.h"

namespace nccl_ha::test {
namespace {

using emulated::Control;
using emulated::Mode;
using Clock = std::chrono::steady_clock;

TEST(NicFaults, ACutCableEndsInRetriesThatTakeAsLongAsTheirTimeoutSays) {
  with_nic("devices=2", [](Control& control) {
    QueuePairs pairs;
    pairs.connect(12, 3);  // 16.8 ms, four times
    control.cut(1, 1, 1, emulated::cut_in, false);
    const auto start = Clock::now();
    ASSERT_EQ(pairs.a.post(IBV_WR_RDMA_WRITE, 7, pairs.b, 4096), 0);
    const auto wc = pairs.a.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 7U);
    EXPECT_EQ(wc->status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_GE(seconds_since(start), 0.067);
    EXPECT_LT(seconds_since(start), 2);
    EXPECT_GE(control.device(1, 1).counters.lost.load(), 4U);
    EXPECT_EQ(control.device(1, 0).counters.retries.load(), 4U);
    EXPECT_EQ(pairs.b.memory[0], 0);
  });
}

TEST(NicFaults, ACableThatHealsInTimeLosesNothing) {
  with_nic("devices=2", [](Control& control) {
    QueuePairs pairs;
    pairs.connect(16, 7);  // 268 ms, eight times
    ASSERT_EQ(pairs.b.post_receive(1), 0);
    control.cut(1, 0, 1, emulated::cut_in, false);  // only answers get lost
    ASSERT_EQ(pairs.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 7, pairs.b, 300000), 0);
    ASSERT_TRUE(pairs.b.complete());
    EXPECT_EQ(std::memcmp(pairs.a.memory.data(), pairs.b.memory.data(), 300000), 0);
    EXPECT_TRUE(await([&] { return control.device(1, 0).counters.retries.load() > 0; }));
    EXPECT_FALSE(pairs.a.complete(0.1));
    std::memset(pairs.b.memory.data(), 0x11, 300000);
    control.cut(1, 0, 1, 0, false);
    const auto wc = pairs.a.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(pairs.b.memory[0], 0x11) << "what is repeated is not written again";
  });
}

TEST(NicFaults, APortThatSeesItsCableSaysSo) {
  with_nic("devices=2", [](Control& control) {
    QueuePairs pairs;
    control.cut(1, 0, 1, emulated::cut_in | emulated::cut_out, true);
    EXPECT_EQ(pairs.a.event(), IBV_EVENT_PORT_ERR);
    ibv_port_attr port{};
    ASSERT_EQ(ibv_query_port(pairs.a.context, 1, &port), 0);
    EXPECT_EQ(port.state, IBV_PORT_DOWN);
    control.cut(1, 0, 1, 0, true);
    EXPECT_EQ(pairs.a.event(), IBV_EVENT_PORT_ACTIVE);
    EXPECT_EQ(pairs.b.event(0), -1) << "the other device";
  });
}

TEST(NicFaults, AResetDeviceRefusesVerbsAndComesBackForThoseWhoOpenItAnew) {
  with_nic("devices=2", [](Control& control) {
    QueuePairs pairs;
    pairs.connect();
    ASSERT_EQ(pairs.b.post_receive(1), 0);
    control.set_mode(1, 0, Mode::reset);
    EXPECT_EQ(pairs.a.event(), IBV_EVENT_DEVICE_FATAL);
    EXPECT_EQ(pairs.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 7, pairs.b, 4096), 0);
    EXPECT_FALSE(pairs.a.complete(0.1));
    EXPECT_FALSE(pairs.b.complete(0));
    ibv_qp_attr error{};
    error.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(ibv_modify_qp(pairs.a.qp, &error, IBV_QP_STATE), EIO);
    EXPECT_EQ(ibv_destroy_qp(pairs.a.qp), EIO);
    EXPECT_EQ(ibv_dereg_mr(pairs.a.mr), EIO);
    int count = 0;
    ibv_free_device_list(ibv_get_device_list(&count));
    EXPECT_EQ(count, 1);
    control.bring_back(1, 0);
    EXPECT_EQ(ibv_destroy_qp(pairs.a.qp), EIO) << "the old opening stays dead";
    QueuePairs anew;
    anew.connect();
    ASSERT_EQ(anew.a.post(IBV_WR_RDMA_WRITE, 8, anew.b, 4096), 0);
    const auto wc = anew.a.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(pairs.b.memory[0], 0) << "the old one's write was never carried out";
  });
}

TEST(NicFaults, AHungDeviceKeepsItsCallersWaiting) {
  with_nic("devices=2,hang.verb=300ms", [](Control& control) {
    QueuePairs pairs;
    pairs.connect();
    control.set_mode(1, 0, Mode::hung);
    ASSERT_EQ(pairs.a.post(IBV_WR_RDMA_WRITE, 7, pairs.b, 4096), 0);
    EXPECT_FALSE(pairs.a.complete(0.1));
    const auto start = Clock::now();
    ibv_qp_attr error{};
    error.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(ibv_modify_qp(pairs.a.qp, &error, IBV_QP_STATE), ETIMEDOUT);
    EXPECT_GE(seconds_since(start), 0.3);
    EXPECT_EQ(ibv_modify_qp(pairs.b.qp, &error, IBV_QP_STATE), 0) << "the other device";
  });
}

TEST(NicFaults, ADeviceWithAnInternalErrorWritesBehindItsOwnersBack) {
  with_nic("devices=2,internal.writes=1500ms", [](Control& control) {
    QueuePairs pairs;
    pairs.connect();
    const auto start = Clock::now();
    control.set_mode(1, 1, Mode::internal);
    EXPECT_EQ(pairs.b.event(), IBV_EVENT_DEVICE_FATAL);
    EXPECT_EQ(ibv_destroy_qp(pairs.b.qp), 0);
    EXPECT_EQ(ibv_dereg_mr(pairs.b.mr), 0);
    ASSERT_EQ(pairs.a.post(IBV_WR_RDMA_WRITE, 7, pairs.b, 4096), 0);
    const auto wc = pairs.a.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(pairs.b.memory[0], 0x5A) << "written after destroy and deregistration said 0";
    EXPECT_EQ(control.device(1, 1).counters.behind.load(), 1U);
    EXPECT_EQ(first_failure(pairs), IBV_WC_RETRY_EXC_ERR);
    EXPECT_GE(seconds_since(start), 1.5) << "before its time";
  });
}

TEST(NicFaults, EventsOfQueuePairsWithAndWithoutCompletions) {
  with_nic("devices=2", [](Control& control) {
    QueuePairs pairs;
    pairs.connect();
    ASSERT_EQ(pairs.b.post_receive(3), 0);
    control.raise({1, 1, 1, IBV_EVENT_QP_FATAL, 0, 0});
    EXPECT_EQ(pairs.b.event(), IBV_EVENT_QP_FATAL);
    const auto flushed = pairs.b.complete();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
    QueuePairs other;
    other.connect();
    ASSERT_EQ(other.b.post_receive(3), 0);
    control.raise({1, 1, 1, IBV_EVENT_QP_REQ_ERR, other.b.qp->qp_num, 1});
    EXPECT_EQ(other.b.event(), IBV_EVENT_QP_REQ_ERR);
    EXPECT_FALSE(other.b.complete(0.1));
    for (const ibv_event_type type :
         {IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_SM_CHANGE, IBV_EVENT_PORT_ERR}) {
      control.raise({1, 0, 1, static_cast<uint32_t>(type), 0, 0});
      EXPECT_EQ(other.a.event(), type);
    }
    // Who else has the device open hears of its port only.
    QueuePairs third;
    control.raise({1, 1, 1, IBV_EVENT_QP_ACCESS_ERR, other.b.qp->qp_num, 0});
    control.raise({1, 1, 1, IBV_EVENT_GID_CHANGE, 0, 0});
    EXPECT_EQ(other.b.event(), IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(third.b.event(), IBV_EVENT_GID_CHANGE);
  });
}

TEST(NicFaults, ACompletionQueueCanFailByItself) {
  with_nic("devices=2", [](Control& control) {
    QueuePairs pairs;
    pairs.connect();
    control.raise({1, 0, 1, IBV_EVENT_CQ_ERR, 0, 0});
    EXPECT_EQ(pairs.a.event(), IBV_EVENT_CQ_ERR);
    ASSERT_EQ(pairs.a.post(IBV_WR_RDMA_WRITE, 1, pairs.b, 8), 0);
    EXPECT_FALSE(pairs.a.complete(0.1));
  });
}

TEST(NicFaults, PacketsInTheNetworkOutliveTheirSender) {
  with_nic("devices=2", [](Control& control) {
    QueuePairs pairs;
    pairs.connect();
    control.hold(1, 1, 1, 1'000'000'000);
    ASSERT_EQ(pairs.a.post(IBV_WR_RDMA_WRITE, 7, pairs.b, 4096), 0);
    ASSERT_EQ(ibv_destroy_qp(std::exchange(pairs.a.qp, nullptr)), 0);
    std::memset(pairs.a.memory.data(), 0x77, 4096);  // its memory is somebody else's now
    EXPECT_EQ(pairs.b.memory[0], 0);
    EXPECT_TRUE(await([&] { return pairs.b.memory[0] != 0; }));
    EXPECT_EQ(pairs.b.memory[0], 0x5A) << "as it was when it was sent";
  });
}

}  // namespace
}  // namespace nccl_ha::test
