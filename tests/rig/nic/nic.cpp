#include "tests/rig/nic/nic.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

namespace nccl_ha::emulated {
namespace {

constexpr auto landing_time = std::chrono::milliseconds(5);
constexpr auto probe_interval = std::chrono::milliseconds(200);
// A queue pair's number of 24 bits names its NIC too.
constexpr uint32_t pair_bits = 12;
constexpr uint32_t numbers = 1U << pair_bits;

uint32_t nic_of(uint32_t pair) { return pair >> pair_bits; }

socklen_t name(sockaddr_un* to, uint32_t number) {
  *to = {};
  to->sun_family = AF_UNIX;
  // Behind a zero byte: a name that is in no file system.
  const int length =
      std::snprintf(to->sun_path + 1, sizeof to->sun_path - 1, "nccl-ha-fake-nic-%u", number);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

/// False when the other process, or its memory, is not there any more.
bool copy_from(pid_t process, const Message& message, char* to) {
  std::array<iovec, pieces_max> theirs{};
  size_t total = 0;
  for (uint32_t i = 0; i < message.piece_count; ++i) {
    theirs[i] = {reinterpret_cast<void*>(message.pieces[i].address), message.pieces[i].length};
    total += message.pieces[i].length;
  }
  const iovec ours{to, total};
  return total == 0 || process_vm_readv(process, &ours, 1, theirs.data(), message.piece_count, 0) ==
                           static_cast<ssize_t>(total);
}

/// In the order of the addresses, as a NIC writes: protocol LL128 looks at the last word of 128
/// bytes while they come.  memcpy() has no such order.
void put(uint64_t address, const std::vector<char>& bytes) {
  auto* to = reinterpret_cast<char*>(address);
  size_t done = 0;
  if (address % sizeof(uint64_t) == 0) {
    for (; done + sizeof(uint64_t) <= bytes.size(); done += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + done, sizeof word);
      __atomic_store_n(reinterpret_cast<uint64_t*>(to + done), word, __ATOMIC_RELEASE);
    }
  }
  for (; done < bytes.size(); ++done) {
    __atomic_store_n(to + done, bytes[done], __ATOMIC_RELEASE);
  }
}

uint64_t length_of(const Message& message) {
  uint64_t total = message.inline_bytes;
  for (uint32_t i = 0; i < message.piece_count; ++i) {
    total += message.pieces[i].length;
  }
  return total;
}

}  // namespace

/// Never destroyed: its thread is there until the process ends.
Nic& Nic::instance() {
  static Nic* only = new Nic;
  return *only;
}

Nic::Nic() {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // peers read what they were sent
  socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const uint32_t first = static_cast<uint32_t>(getpid());
  for (uint32_t i = 0; i < numbers && number_ == 0; ++i) {
    const uint32_t wanted = (first + i) % numbers;
    sockaddr_un at{};
    const socklen_t length = name(&at, wanted);
    if (wanted != 0 && bind(socket_, reinterpret_cast<sockaddr*>(&at), length) == 0) {
      number_ = wanted;
    }
  }
  if (number_ == 0 || wake_ < 0) {
    std::fprintf(stderr, "fake NIC: no socket can be bound\n");
    std::abort();
  }
  std::thread([this] { work(); }).detach();
}

uint32_t Nic::new_pair_number() {
  do {
    next_pair_ = next_pair_ % (numbers - 1) + 1;
  } while (pairs_.count((number_ << pair_bits) | next_pair_) != 0);
  return (number_ << pair_bits) | next_pair_;
}

Region* Nic::add_region(std::unique_ptr<Region> region) {
  next_key_ += 0x11;
  region->lkey = next_key_;
  region->rkey = next_key_ | remote_key;
  Region* raw = region.get();
  regions_[next_key_] = std::move(region);
  return raw;
}

bool Nic::remove_region(Region* region) {
  push_to_devices(Clock::time_point::max());  // nothing is written once this returns
  return regions_.erase(region->lkey) == 1;
}

Region* Nic::region_of(uint32_t key, uint64_t address, uint64_t length) {
  const auto found = regions_.find(key);
  if (found == regions_.end()) {
    return nullptr;
  }
  const auto start = reinterpret_cast<uint64_t>(found->second->addr);
  const bool inside = address >= start && length <= found->second->length &&
                      address - start <= found->second->length - length;
  return inside ? found->second.get() : nullptr;
}

void Nic::request(Pair& pair, const Send& send, Message message) {
  message.from = pair.qp_num;
  message.to = pair.peer;
  message.process = getpid();
  message.number = pair.next_number++;
  pair.sends.push_back(send);
  pair.sends.back().number = message.number;
  post(message);
}

void Nic::post(const Message& message) {
  Peer& peer = peers_[nic_of(message.to)];
  peer.outgoing.push_back(message);
  const uint64_t one = 1;
  static_cast<void>(!write(wake_, &one, sizeof one));
}

void Nic::change_state(Pair& pair, ibv_qp_state state) {
  pair.state = state;
  if (state == IBV_QPS_ERR) {
    for (const Send& send : std::exchange(pair.sends, {})) {
      ibv_wc wc{};
      wc.wr_id = send.id;
      wc.status = IBV_WC_WR_FLUSH_ERR;
      wc.opcode = send.opcode;
      wc.qp_num = pair.qp_num;
      complete(pair.send_cq, wc);
    }
    for (const Receive& receive : std::exchange(pair.receives, {})) {
      ibv_wc wc{};
      wc.wr_id = receive.id;
      wc.status = IBV_WC_WR_FLUSH_ERR;
      wc.opcode = IBV_WC_RECV;
      wc.qp_num = pair.qp_num;
      complete(pair.recv_cq, wc);
    }
  }
  deal_with_arrived(pair);
}

void Nic::complete(ibv_cq* cq, const ibv_wc& wc) {
  auto* queue = static_cast<Queue*>(cq);
  queue->ready.push_back(wc);
  if (std::exchange(queue->armed, false) && queue->channel != nullptr) {
    static_cast<void>(!write(static_cast<Channel*>(queue->channel)->write_end, &cq, sizeof cq));
  }
}

/// The first request without an answer failed.
void Nic::fail(Pair& pair, ibv_wc_status status) {
  if (pair.state == IBV_QPS_ERR || pair.sends.empty()) {
    return;
  }
  ibv_wc wc{};
  wc.wr_id = pair.sends.front().id;
  wc.status = status;
  wc.opcode = pair.sends.front().opcode;
  wc.qp_num = pair.qp_num;
  pair.sends.pop_front();
  complete(pair.send_cq, wc);
  change_state(pair, IBV_QPS_ERR);
}

void Nic::take(const Message& message) {
  if (message.kind == MessageKind::answer) {
    take_answer(message);
    return;
  }
  if (message.kind == MessageKind::probe) {
    return;
  }
  const auto found = pairs_.find(message.to);
  if (found != pairs_.end()) {
    found->second->arrived.push_back(message);
    deal_with_arrived(*found->second);
    return;
  }
  // A real one says nothing, and its peer gives up after a while.
  Message answer;
  answer.kind = MessageKind::answer;
  answer.to = message.from;
  answer.number = message.number;
  answer.status = IBV_WC_RETRY_EXC_ERR;
  post(answer);
}

void Nic::take_answer(const Message& message) {
  const auto found = pairs_.find(message.to);
  if (found == pairs_.end()) {
    return;
  }
  Pair& pair = *found->second;
  if (pair.sends.empty() || pair.sends.front().number != message.number) {
    return;  // the pair is in error, or another one has its number
  }
  if (message.status != IBV_WC_SUCCESS) {
    fail(pair, static_cast<ibv_wc_status>(message.status));
    return;
  }
  const Send send = pair.sends.front();
  pair.sends.pop_front();
  if (send.signaled) {
    ibv_wc wc{};
    wc.wr_id = send.id;
    wc.status = IBV_WC_SUCCESS;
    wc.opcode = send.opcode;
    wc.byte_len = send.bytes;
    wc.qp_num = pair.qp_num;
    complete(pair.send_cq, wc);
  }
}

void Nic::deal_with_arrived(Pair& pair) {
  while (!pair.arrived.empty()) {
    const Message message = pair.arrived.front();
    const bool dead = pair.state == IBV_QPS_ERR || pair.state == IBV_QPS_RESET;
    const bool ready = pair.state == IBV_QPS_RTR || pair.state == IBV_QPS_RTS;
    const bool uses_receive = message.kind == MessageKind::send || message.has_immediate;
    if (!dead && (!ready || (uses_receive && pair.receives.empty()))) {
      return;
    }
    pair.arrived.pop_front();
    Message answer;
    answer.kind = MessageKind::answer;
    answer.to = message.from;
    answer.number = message.number;
    answer.status = dead ? IBV_WC_RETRY_EXC_ERR : execute(pair, message);
    post(answer);
    if (!dead && answer.status != IBV_WC_SUCCESS) {
      change_state(pair, IBV_QPS_ERR);
      return;
    }
  }
}

ibv_wc_status Nic::execute(Pair& pair, const Message& message) {
  const uint64_t length = length_of(message);
  if (message.kind == MessageKind::read) {
    Region* region = region_of(message.key ^ remote_key, message.address, length);
    if (region == nullptr) {
      return IBV_WC_REM_ACCESS_ERR;
    }
    push_to_devices(Clock::time_point::max());
    const iovec ours{reinterpret_cast<void*>(message.address), length};
    const iovec theirs{reinterpret_cast<void*>(message.pieces[0].address), length};
    const bool copied =
        process_vm_writev(message.process, &ours, 1, &theirs, 1, 0) == static_cast<ssize_t>(length);
    return copied ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR;
  }
  std::vector<char> bytes(length);
  std::memcpy(bytes.data(), message.data.data(), message.inline_bytes);
  if (!copy_from(message.process, message, bytes.data() + message.inline_bytes)) {
    return IBV_WC_REM_OP_ERR;
  }
  if (message.kind == MessageKind::write && length != 0) {
    Region* region = region_of(message.key ^ remote_key, message.address, length);
    if (region == nullptr) {
      return IBV_WC_REM_ACCESS_ERR;
    }
    land(*region, message.address, std::move(bytes));
  } else if (message.kind == MessageKind::send) {
    if (pair.receives.front().piece.length < length) {
      return IBV_WC_REM_INV_REQ_ERR;
    }
    std::memcpy(reinterpret_cast<void*>(pair.receives.front().piece.address), bytes.data(), length);
  }
  if (message.kind == MessageKind::send || message.has_immediate) {
    ibv_wc wc{};
    wc.wr_id = pair.receives.front().id;
    wc.status = IBV_WC_SUCCESS;
    wc.opcode = message.kind == MessageKind::send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
    wc.byte_len = static_cast<uint32_t>(length);
    wc.qp_num = pair.qp_num;
    wc.wc_flags = message.has_immediate ? IBV_WC_WITH_IMM : 0;
    wc.imm_data = message.immediate;
    pair.receives.pop_front();
    complete(pair.recv_cq, wc);
  }
  return IBV_WC_SUCCESS;
}

void Nic::land(const Region& region, uint64_t address, std::vector<char> bytes) {
  if (region.on_device) {
    staged_.push_back({Clock::now() + landing_time, address, std::move(bytes)});
  } else {
    put(address, bytes);
  }
}

void Nic::push_to_devices(Clock::time_point arrived_until) {
  for (; !staged_.empty() && staged_.front().due <= arrived_until; staged_.pop_front()) {
    const Staged& one = staged_.front();
    put(one.address, one.bytes);
  }
}

/// True when something is left, because a peer's socket is full.
bool Nic::flush_outgoing() {
  bool left = false;
  for (auto& [number, peer] : peers_) {
    if (peer.socket < 0 && !peer.outgoing.empty()) {
      peer.socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      sockaddr_un at{};
      const socklen_t length = name(&at, number);
      static_cast<void>(connect(peer.socket, reinterpret_cast<sockaddr*>(&at), length));
    }
    while (!peer.outgoing.empty()) {
      if (send(peer.socket, &peer.outgoing.front(), sizeof(Message), MSG_NOSIGNAL) >= 0) {
        peer.outgoing.pop_front();
        continue;
      }
      if (errno == EAGAIN || errno == ENOBUFS) {
        left = true;
        break;
      }
      peer.outgoing.clear();
      close(std::exchange(peer.socket, -1));
      fail_peers_of(number);
    }
  }
  return left;
}

void Nic::fail_peers_of(uint32_t nic) {
  for (const auto& [number, pair] : pairs_) {
    if (nic_of(pair->peer) == nic && pair->peer != 0) {
      fail(*pair, IBV_WC_RETRY_EXC_ERR);
    }
  }
}

/// A process that died answers nothing; a socket that is gone says so.
void Nic::probe_silent_peers() {
  for (const auto& [number, pair] : pairs_) {
    if (!pair->sends.empty() && peers_[nic_of(pair->peer)].outgoing.empty()) {
      Message probe;
      probe.to = pair->peer;
      post(probe);
    }
  }
}

void Nic::work_once(std::vector<pollfd>& waited) {
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  static_cast<void>(!read(wake_, &count, sizeof count));
  Message message;
  while (recv(socket_, &message, sizeof message, 0) == sizeof message) {
    take(message);
  }
  const Clock::time_point now = Clock::now();
  push_to_devices(now);
  if (now >= next_probe_) {
    next_probe_ = now + probe_interval;
    probe_silent_peers();
  }
  waited = {{socket_, POLLIN, 0}, {wake_, POLLIN, 0}};
  if (flush_outgoing()) {
    for (const auto& [number, peer] : peers_) {
      if (!peer.outgoing.empty()) {
        waited.push_back({peer.socket, POLLOUT, 0});
      }
    }
  }
}

void Nic::work() {
  pthread_setname_np(pthread_self(), "fake NIC");
  std::vector<pollfd> waited;
  for (;;) {
    work_once(waited);
    poll(waited.data(), waited.size(), static_cast<int>(landing_time.count()));
  }
}

}  // namespace nccl_ha::emulated
