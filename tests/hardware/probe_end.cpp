// Devices, queue pairs and the way to the other probe.
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "tests/hardware/probe.h"

namespace nccl_ha::hardware {
namespace {

/// That one, or without a name the first whose port is active.
ibv_context* open_device(const Options& options, ibv_device** list, int count) {
  for (int i = 0; i < count; ++i) {
    if (!options.device.empty() && options.device != ibv_get_device_name(list[i])) {
      continue;
    }
    ibv_context* context = ibv_open_device(list[i]);
    require(context != nullptr, "ibv_open_device");
    ibv_port_attr port{};
    if (!options.device.empty() ||
        (ibv_query_port(context, static_cast<uint8_t>(options.port), &port) == 0 &&
         port.state == IBV_PORT_ACTIVE)) {
      return context;
    }
    ibv_close_device(context);
  }
  return nullptr;
}

std::string gid_type(const char* device, int port, int index) {
  std::ifstream file("/sys/class/infiniband/" + std::string(device) + "/ports/" +
                     std::to_string(port) + "/gid_attrs/types/" + std::to_string(index));
  std::string type;
  std::getline(file, type);
  return type;
}

/// RoCE v2 with an IPv4 address, as NCCL prefers it; else the first that is set.
int choose_gid(ibv_context* context, int port, const ibv_port_attr& attributes) {
  int first = -1;
  for (int i = 0; i < attributes.gid_tbl_len; ++i) {
    ibv_gid gid{};
    if (ibv_query_gid(context, static_cast<uint8_t>(port), i, &gid) != 0 ||
        (gid.global.subnet_prefix == 0 && gid.global.interface_id == 0)) {
      continue;
    }
    first = first < 0 ? i : first;
    static constexpr uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    const std::string type = gid_type(ibv_get_device_name(context->device), port, i);
    if (std::memcmp(gid.raw, mapped, sizeof(mapped)) == 0 && (type.empty() || type == "RoCE v2")) {
      return i;
    }
  }
  return std::max(first, 0);
}

}  // namespace

Device::Device(const Options& options) : port_number(options.port) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  context = list == nullptr ? nullptr : open_device(options, list, count);
  if (context == nullptr) {
    give_up("no RDMA device " + (options.device.empty() ? "with an active port" : options.device));
  }
  ibv_free_device_list(list);
  pd = ibv_alloc_pd(context);
  require(pd != nullptr, "ibv_alloc_pd");
  require(ibv_query_device(context, &attributes) == 0, "ibv_query_device");
  require(ibv_query_port(context, static_cast<uint8_t>(port_number), &port) == 0, "ibv_query_port");
  gid_index = options.gid >= 0 ? options.gid : choose_gid(context, port_number, port);
  require(ibv_query_gid(context, static_cast<uint8_t>(port_number), gid_index, &gid) == 0,
          "ibv_query_gid");
}

End::End(Device& on, size_t size, unsigned access) : device(on), bytes(size) {
  void* pages_of_it =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(pages_of_it != MAP_FAILED, "mmap");
  memory = static_cast<char*>(pages_of_it);
  std::memset(memory, 0, bytes);
  cq = ibv_create_cq(device.context, 4 * depth, nullptr, nullptr, 0);
  require(cq != nullptr, "ibv_create_cq");
  mr = ibv_reg_mr(
      device.pd, memory, bytes,
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | access);
  require(mr != nullptr, "ibv_reg_mr");
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = cq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = attributes.cap.max_recv_wr = depth;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  qp = ibv_create_qp(device.pd, &attributes);
  require(qp != nullptr, "ibv_create_qp");
}

End::~End() {
  static_cast<void>(destroy());
  ibv_dereg_mr(mr);
  ibv_destroy_cq(cq);
  munmap(memory, bytes);
}

Address End::address() const {
  Address mine;
  mine.number = qp->qp_num;
  mine.lid = device.port.lid;
  mine.gid = device.gid;
  mine.memory = reinterpret_cast<uint64_t>(memory);
  mine.key = mr->rkey;
  mine.mtu = device.port.active_mtu;
  return mine;
}

void End::connect(const Address& to, const Options& options) {
  peer = to;
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.port_num = static_cast<uint8_t>(device.port_number);
  state.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  require(ibv_modify_qp(qp, &state,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
          "ibv_modify_qp to INIT");
  for (uint64_t i = 0; i < depth; ++i) {
    post_receive(i);
  }
  state = {};
  state.qp_state = IBV_QPS_RTR;
  state.path_mtu = static_cast<ibv_mtu>(std::min<uint32_t>(device.port.active_mtu, to.mtu));
  state.dest_qp_num = to.number;
  state.max_dest_rd_atomic = 1;
  state.min_rnr_timer = 12;
  state.ah_attr.port_num = static_cast<uint8_t>(device.port_number);
  state.ah_attr.dlid = static_cast<uint16_t>(to.lid);
  if (!device.infiniband()) {
    state.ah_attr.is_global = 1;
    state.ah_attr.grh.dgid = to.gid;
    state.ah_attr.grh.sgid_index = static_cast<uint8_t>(device.gid_index);
    state.ah_attr.grh.hop_limit = 255;
  }
  require(ibv_modify_qp(qp, &state,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
          "ibv_modify_qp to RTR");
  state = {};
  state.qp_state = IBV_QPS_RTS;
  state.timeout = static_cast<uint8_t>(options.timeout);
  state.retry_cnt = static_cast<uint8_t>(options.retries);
  state.rnr_retry = 7;
  state.max_rd_atomic = 1;
  require(ibv_modify_qp(qp, &state,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0,
          "ibv_modify_qp to RTS");
}

int End::to_error() {
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_ERR;
  return ibv_modify_qp(qp, &state, IBV_QP_STATE);
}

int End::destroy() {
  const int error = qp == nullptr ? 0 : ibv_destroy_qp(qp);
  qp = nullptr;
  return error;
}

int End::write(uint64_t id, size_t offset, uint32_t length, bool immediate, uint32_t value,
               size_t to, bool signaled) {
  ibv_sge piece{reinterpret_cast<uint64_t>(memory + offset), length, mr->lkey};
  ibv_send_wr request{};
  request.wr_id = id;
  request.sg_list = &piece;
  request.num_sge = length == 0 ? 0 : 1;
  request.opcode = immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  request.imm_data = htonl(value);
  request.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
  request.wr.rdma.remote_addr = peer.memory + to;
  request.wr.rdma.rkey = peer.key;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &request, &bad);
}

int End::read_back() {
  ibv_sge piece{reinterpret_cast<uint64_t>(memory), 1, mr->lkey};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = peer.memory;
  request.wr.rdma.rkey = peer.key;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &request, &bad);
}

void End::post_receive(uint64_t id) {
  ibv_recv_wr request{};
  request.wr_id = id;
  ibv_recv_wr* bad = nullptr;
  require(ibv_post_recv(qp, &request, &bad) == 0, "ibv_post_recv");
}

bool End::complete(ibv_wc* wc, double limit_s) {
  for (const auto start = Clock::now(); us_since(start) < limit_s * 1e6;) {
    if (poll(wc)) {
      return true;
    }
  }
  return false;
}

Wire::Wire(const Options& options) : first_(!options.peer.empty()) {
  const size_t colon = options.peer.rfind(':');
  const std::string host = first_ ? options.peer.substr(0, colon) : std::string();
  const std::string port = first_ ? options.peer.substr(colon + 1) : std::to_string(options.listen);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = first_ ? 0 : AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(first_ ? host.c_str() : nullptr, port.c_str(), &hints, &found) != 0) {
    give_up("no such host: " + host);
  }
  const auto start = Clock::now();
  while (fd_ < 0 && us_since(start) < 30e6) {
    const int made = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (first_) {
      if (::connect(made, found->ai_addr, found->ai_addrlen) == 0) {
        fd_ = made;
        break;
      }
      poll(nullptr, 0, 100);  // the other side begins a little later
    } else {
      require(bind(made, found->ai_addr, found->ai_addrlen) == 0, "bind");
      require(listen(made, 1) == 0, "listen");
      pollfd ready{made, POLLIN, 0};
      if (poll(&ready, 1, 30'000) == 1) {
        fd_ = accept4(made, nullptr, nullptr, SOCK_CLOEXEC);
      }
    }
    close(made);
  }
  freeaddrinfo(found);
  if (fd_ < 0) {
    give_up("the other probe did not come within 30 s, at " + (first_ ? options.peer : port));
  }
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Wire::~Wire() { close(fd_); }

void Wire::transfer(void* data, size_t count, bool out, double limit_s) {
  auto* at = static_cast<char*>(data);
  for (size_t done = 0; done < count;) {
    pollfd ready{fd_, static_cast<short>(out ? POLLOUT : POLLIN), 0};
    if (poll(&ready, 1, static_cast<int>(limit_s * 1000)) != 1) {
      give_up("the other probe is silent");
    }
    const ssize_t moved = out ? send(fd_, at + done, count - done, MSG_NOSIGNAL)
                              : recv(fd_, at + done, count - done, 0);
    if (moved <= 0) {
      give_up("the other probe has ended");
    }
    done += static_cast<size_t>(moved);
  }
}

Address Wire::exchange(const Address& mine) {
  Address ours = mine;
  Address theirs;
  transfer(&ours, sizeof(ours), true, 60);
  transfer(&theirs, sizeof(theirs), false, 60);
  return theirs;
}

void Wire::say(char word) { transfer(&word, 1, true, 60); }

char Wire::hear(double limit_s) {
  char word = 0;
  transfer(&word, 1, false, limit_s);
  return word;
}

char Wire::heard() {
  char word = 0;
  return recv(fd_, &word, 1, MSG_DONTWAIT) == 1 ? word : '\0';
}

}  // namespace nccl_ha::hardware
