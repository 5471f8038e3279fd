// What each control verb of a device costs.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <thread>

#include "tests/hardware/probe.h"

namespace nccl_ha::hardware {
namespace {

constexpr size_t page = 4096;
constexpr unsigned all_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

/// Memory whose pages are there.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    at_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
               -1, 0);
    require(at_ != MAP_FAILED, "mmap");
  }
  ~Memory() { munmap(at_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* at() const { return at_; }

 private:
  void* at_ = nullptr;
  size_t bytes_;
};

void time_registration(Device& device, const char* name, size_t bytes, int repeat,
                       std::map<std::string, Times>& times) {
  const Memory memory(bytes);
  for (int i = 0; i < repeat; ++i) {
    ibv_mr* mr = nullptr;
    times["reg_mr " + std::string(name)].take("ibv_reg_mr", [&] {
      mr = ibv_reg_mr(device.pd, memory.at(), bytes, static_cast<int>(all_access));
      return mr == nullptr ? 1 : 0;
    });
    times["dereg_mr " + std::string(name)].take("ibv_dereg_mr", [&] { return ibv_dereg_mr(mr); });
  }
}

/// A queue pair that is connected to itself, through all its states.
void time_queue_pair(Device& device, const Options& options, std::map<std::string, Times>& times) {
  ibv_cq* cq = nullptr;
  times["create_cq"].take("ibv_create_cq", [&] {
    cq = ibv_create_cq(device.context, 256, nullptr, nullptr, 0);
    return cq == nullptr ? 1 : 0;
  });
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = wanted.cap.max_recv_wr = 128;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  ibv_qp* qp = nullptr;
  times["create_qp"].take("ibv_create_qp", [&] {
    qp = ibv_create_qp(device.pd, &wanted);
    return qp == nullptr ? 1 : 0;
  });
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.port_num = static_cast<uint8_t>(device.port_number);
  times["modify_qp INIT"].take("ibv_modify_qp to INIT", [&] {
    return ibv_modify_qp(qp, &state,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  });
  state = {};
  state.qp_state = IBV_QPS_RTR;
  state.path_mtu = device.port.active_mtu;
  state.dest_qp_num = qp->qp_num;
  state.max_dest_rd_atomic = 1;
  state.min_rnr_timer = 12;
  state.ah_attr.port_num = static_cast<uint8_t>(device.port_number);
  state.ah_attr.dlid = device.port.lid;
  if (!device.infiniband()) {
    state.ah_attr.is_global = 1;
    state.ah_attr.grh.dgid = device.gid;
    state.ah_attr.grh.sgid_index = static_cast<uint8_t>(device.gid_index);
    state.ah_attr.grh.hop_limit = 255;
  }
  times["modify_qp RTR"].take("ibv_modify_qp to RTR", [&] {
    return ibv_modify_qp(qp, &state,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  });
  state = {};
  state.qp_state = IBV_QPS_RTS;
  state.timeout = static_cast<uint8_t>(options.timeout);
  state.retry_cnt = static_cast<uint8_t>(options.retries);
  state.rnr_retry = 7;
  state.max_rd_atomic = 1;
  times["modify_qp RTS"].take("ibv_modify_qp to RTS", [&] {
    return ibv_modify_qp(qp, &state,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  });
  state = {};
  state.qp_state = IBV_QPS_ERR;
  times["modify_qp ERR"].take("ibv_modify_qp to ERR",
                              [&] { return ibv_modify_qp(qp, &state, IBV_QP_STATE); });
  times["destroy_qp"].take("ibv_destroy_qp", [&] { return ibv_destroy_qp(qp); });
  times["destroy_cq"].take("ibv_destroy_cq", [&] { return ibv_destroy_cq(cq); });
}

/// What creating and destroying a queue pair takes while `threads` do so on one device.
std::string side_by_side(Device& device, size_t threads, int repeat) {
  std::vector<Times> times(threads);
  std::vector<std::thread> running;
  for (size_t t = 0; t < threads; ++t) {
    running.emplace_back([&device, repeat, mine = &times[t]] {
      ibv_cq* cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
      require(cq != nullptr, "ibv_create_cq");
      ibv_qp_init_attr wanted{};
      wanted.send_cq = wanted.recv_cq = cq;
      wanted.qp_type = IBV_QPT_RC;
      wanted.cap.max_send_wr = wanted.cap.max_recv_wr = 16;
      wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
      for (int i = 0; i < repeat; ++i) {
        mine->take("ibv_create_qp and ibv_destroy_qp", [&] {
          ibv_qp* qp = ibv_create_qp(device.pd, &wanted);
          return qp == nullptr ? 1 : ibv_destroy_qp(qp);
        });
      }
      ibv_destroy_cq(cq);
    });
  }
  const auto start = Clock::now();
  for (std::thread& one : running) {
    one.join();
  }
  const double all_us = us_since(start);
  double longest = 0;
  for (const Times& one : times) {
    longest = std::max(longest, one.max());
  }
  return Object()
      .add("threads", static_cast<uint64_t>(threads))
      .add("us_each", all_us / static_cast<double>(threads) / repeat)
      .add("max_us", longest)
      .json();
}

}  // namespace

void time_verbs(Device& device, const Options& options, int repeat,
                std::map<std::string, Times>& times) {
  for (int i = 0; i < repeat; ++i) {
    time_queue_pair(device, options, times);
    ibv_port_attr port{};
    times["query_port"].take("ibv_query_port", [&] {
      return ibv_query_port(device.context, static_cast<uint8_t>(device.port_number), &port);
    });
    ibv_gid gid{};
    times["query_gid"].take("ibv_query_gid", [&] {
      return ibv_query_gid(device.context, static_cast<uint8_t>(device.port_number),
                           device.gid_index, &gid);
    });
  }
  time_registration(device, "4K", page, repeat, times);
}

std::string times_json(const std::map<std::string, Times>& times) {
  Object all;
  for (const auto& [name, one] : times) {
    all.add(name, one.json());
  }
  return all.json();
}

std::string measure_verbs(const Options& options) {
  std::map<std::string, Times> times;
  for (int i = 0; i < 5; ++i) {
    Device* device = nullptr;
    times["open_device, alloc_pd"].take("opening", [&] {
      device = new Device(options);
      return 0;
    });
    times["dealloc_pd"].take("ibv_dealloc_pd", [&] { return ibv_dealloc_pd(device->pd); });
    times["close_device"].take("ibv_close_device",
                               [&] { return ibv_close_device(device->context); });
    delete device;
  }
  Device device(options);
  time_verbs(device, options, options.repeat, times);
  time_registration(device, "1M", size_t{1} << 20, std::max(1, options.repeat / 4), times);
  time_registration(device, "64M", size_t{64} << 20, std::max(1, options.repeat / 20), times);
  time_registration(device, "1G", size_t{1} << 30, 3, times);
  return Object()
      .add("verbs", times_json(times))
      .add("one_thread", side_by_side(device, 1, options.repeat))
      .add("four_threads", side_by_side(device, 4, options.repeat))
      .json();
}

}  // namespace nccl_ha::hardware
