// Queue pairs over emulated NICs, in a child process: the library takes its settings once.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/rig/nic/control.h"

namespace nccl_ha::test {

/// A state file that is gone with the object.
class StateFile {
 public:
  StateFile() {
    char name[] = "/tmp/nha-nic-XXXXXX";
    close(mkstemp(name));
    path_ = name;
  }
  ~StateFile() { unlink(path_.c_str()); }
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Runs the body in a process of its own, host 1, with these settings.
inline void with_nic(const std::string& settings,
                     const std::function<void(emulated::Control&)>& body) {
  const StateFile file;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    setenv("NHA_NIC", ("state=" + file.path() + ",host=1," + settings).c_str(), 1);
    emulated::Control control(file.path());
    body(control);
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "see above";
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// One end, with its own opening of a device.
struct QueueEnd {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  std::vector<char> memory = std::vector<char>(1 << 20);

  explicit QueueEnd(int device, ibv_qp_type type = IBV_QPT_RC, int entries = 256) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    context = device < count ? ibv_open_device(list[device]) : nullptr;
    ibv_free_device_list(list);
    if (context == nullptr) {
      return;
    }
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, entries, nullptr, nullptr, 0);
    mr = ibv_reg_mr(pd, memory.data(), memory.size(),
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.qp_type = type;
    attributes.cap = {64, 64, 2, 1, 64};
    qp = ibv_create_qp(pd, &attributes);
  }

  ~QueueEnd() {
    if (qp != nullptr) {
      ibv_destroy_qp(qp);  // before its memory goes
    }
  }
  QueueEnd(const QueueEnd&) = delete;
  QueueEnd& operator=(const QueueEnd&) = delete;

  ibv_gid gid() const {
    ibv_gid gid{};
    ibv_query_gid(context, 1, 0, &gid);
    return gid;
  }

  /// Ready for data, with 4.096 us * 2^`timeout` for an answer.
  int connect(const QueueEnd& peer, uint8_t timeout = 10, uint8_t retries = 2,
              uint8_t not_ready = 7) {
    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_INIT;
    state.port_num = 1;
    state.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    int error = ibv_modify_qp(qp, &state,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    state = {};
    state.qp_state = IBV_QPS_RTR;
    state.path_mtu = IBV_MTU_4096;
    state.dest_qp_num = peer.qp->qp_num;
    state.max_dest_rd_atomic = 1;
    state.min_rnr_timer = 12;
    state.ah_attr.is_global = 1;
    state.ah_attr.grh.dgid = peer.gid();
    state.ah_attr.port_num = 1;
    error |= ibv_modify_qp(qp, &state,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    state = {};
    state.qp_state = IBV_QPS_RTS;
    state.timeout = timeout;
    state.retry_cnt = retries;
    state.rnr_retry = not_ready;
    state.max_rd_atomic = 1;
    error |= ibv_modify_qp(qp, &state,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    return error;
  }

  int post(ibv_wr_opcode opcode, uint64_t id, const QueueEnd& peer, uint32_t bytes,
           unsigned flags = IBV_SEND_SIGNALED) {
    ibv_sge piece{reinterpret_cast<uint64_t>(memory.data()), bytes, mr->lkey};
    ibv_send_wr request{};
    request.wr_id = id;
    request.sg_list = &piece;
    request.num_sge = bytes == 0 ? 0 : 1;
    request.opcode = opcode;
    request.send_flags = flags;
    request.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(peer.memory.data());
    request.wr.rdma.rkey = peer.mr->rkey;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &request, &bad);
  }

  int post_receive(uint64_t id, uint32_t bytes = 0) {
    ibv_sge piece{reinterpret_cast<uint64_t>(memory.data()), bytes, mr->lkey};
    ibv_recv_wr request{};
    request.wr_id = id;
    request.sg_list = &piece;
    request.num_sge = bytes == 0 ? 0 : 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &request, &bad);
  }

  /// The next completion; nullptr: none came in time.
  std::unique_ptr<ibv_wc> complete(double limit = 5) {
    auto wc = std::make_unique<ibv_wc>();
    for (const auto start = std::chrono::steady_clock::now(); seconds_since(start) < limit;) {
      if (ibv_poll_cq(cq, 1, wc.get()) == 1) {
        return wc;
      }
      poll(nullptr, 0, 1);
    }
    return nullptr;
  }

  /// The next asynchronous event; -1: none came in time.
  int event(int limit_ms = 2000) {
    pollfd ready{context->async_fd, POLLIN, 0};
    ibv_async_event event{};
    if (poll(&ready, 1, limit_ms) != 1 || ibv_get_async_event(context, &event) != 0) {
      return -1;
    }
    ibv_ack_async_event(&event);
    return event.event_type;
  }
};

/// From device 0 to device 1 of the same host.
struct QueuePairs {
  QueueEnd a{0};
  QueueEnd b{1};
  void connect(uint8_t timeout = 10, uint8_t retries = 2, uint8_t not_ready = 7) {
    ASSERT_TRUE(a.qp != nullptr && b.qp != nullptr);
    ASSERT_EQ(b.connect(a, timeout, retries, not_ready), 0);
    ASSERT_EQ(a.connect(b, timeout, retries, not_ready), 0);
    std::memset(a.memory.data(), 0x5A, a.memory.size());
  }
};

inline bool await(const std::function<bool()>& done, double limit = 5) {
  for (const auto start = std::chrono::steady_clock::now(); !done();) {
    if (seconds_since(start) > limit) {
      return false;
    }
    poll(nullptr, 0, 1);
  }
  return true;
}

/// Writes until that does not succeed any more.
inline ibv_wc_status first_failure(QueuePairs& pairs) {
  ibv_wc_status status = IBV_WC_SUCCESS;
  EXPECT_TRUE(await([&] {
    EXPECT_EQ(pairs.a.post(IBV_WR_RDMA_WRITE, 1, pairs.b, 8), 0);
    const auto wc = pairs.a.complete();
    status = wc ? wc->status : IBV_WC_GENERAL_ERR;
    return status != IBV_WC_SUCCESS;
  }));
  return status;
}

}  // namespace nccl_ha::test
