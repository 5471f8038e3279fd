#include "runtime/sim/rdma.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/sim/rdma_objects.h"

namespace nccl_ha::sim {
namespace {

constexpr uint64_t window = 128;  ///< packets that may be under way
constexpr uint64_t acknowledged_every = 16;
constexpr int64_t bytes_per_ns = 10;

}  // namespace

RdmaNic::RdmaNic(Network& network, Conditions& conditions, uint64_t seed, Ip address,
                 std::string name, uint32_t number)
    : network_(network),
      conditions_(conditions),
      random_(seed),
      address_(address),
      name_(std::move(name)),
      number_(number),
      context_(std::make_unique<Context>()),
      device_(std::make_unique<Device>()) {
  context_->nic = this;
  context_->async_fd = network_.make_event();
  device_->nic = this;
  network_.rdma_[address] = this;
}

RdmaNic::~RdmaNic() {
  network_.rdma_.erase(address_);
  close(context_->async_fd);
}

Result<fabric::verbs::UsablePort> RdmaNic::open(const Config& config, const std::string& netdev) {
  auto device = fabric::verbs::Device::open(rdma_library(), device_.get(), config);
  if (!device) {
    return device.error();
  }
  auto info = (*device)->query(1);
  if (!info) {
    return info.error();
  }
  info->netdev = netdev;
  return fabric::verbs::UsablePort{std::move(*device), std::move(*info)};
}

void RdmaNic::report(ibv_event_type type) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = 1;
  events_.push_back(event);
  network_.readable(context_->async_fd);
}

void RdmaNic::set_port(bool up) {
  if (up_ != up && !failed_) {
    up_ = up;
    report(up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
  }
}

void RdmaNic::move_gid() {
  gid_place_ = gid_place_ % 3 + 1;
  report(IBV_EVENT_GID_CHANGE);
}

void RdmaNic::fail_for_good(bool forgets) {
  if (!std::exchange(failed_, true)) {
    // What it has reported is in the host's memory.
    for (CompletionQueue* queue : queues_) {
      std::erase_if(queue->entries, [&](const CompletionQueue::Entry& entry) {
        return forgets && entry.due > network_.now();
      });
      for (CompletionQueue::Entry& entry : queue->entries) {
        entry.due = std::min(entry.due, network_.now());
      }
    }
    report(IBV_EVENT_DEVICE_FATAL);
  }
}

RdmaQueuePair* RdmaNic::find(uint32_t number) {
  const auto found = pairs_.find(number);
  return found == pairs_.end() ? nullptr : found->second;
}

RdmaNic::Region* RdmaNic::find_region(uint32_t key, uint64_t address, uint64_t length,
                                      bool local) const {
  const auto found = regions_.find(key);
  if (found == regions_.end()) {
    return nullptr;
  }
  Region* region = found->second;
  const auto base = reinterpret_cast<uint64_t>(region->addr);
  const bool inside =
      address >= base && length <= region->length && address - base <= region->length - length;
  return inside && (local ? region->lkey : region->rkey) == key ? region : nullptr;
}

void RdmaNic::post_send(RdmaQueuePair& pair, const ibv_send_wr& request) {
  RdmaWork work;
  work.id = request.wr_id;
  work.opcode = request.opcode;
  work.signaled = (request.send_flags & IBV_SEND_SIGNALED) != 0;
  work.inlined = (request.send_flags & IBV_SEND_INLINE) != 0;
  work.remote = request.wr.rdma.remote_addr;
  work.key = request.wr.rdma.rkey;
  work.immediate = request.imm_data;
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& part = request.sg_list[i];
    work.gathers.push_back(part);
    work.length += part.length;
    if (work.inlined) {
      const auto* from = reinterpret_cast<const std::byte*>(part.addr);
      work.copy.insert(work.copy.end(), from, from + part.length);
    }
  }
  work.first = pair.next;
  work.packets = std::max<uint64_t>(1, (uint64_t{work.length} + pair.mtu - 1) / pair.mtu);
  pair.next += work.packets;
  const auto counted = conditions_.counted.upper_bound(work.remote);
  const bool writes = work.opcode == IBV_WR_RDMA_WRITE || work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (writes && counted != conditions_.counted.begin() &&
      work.remote < std::prev(counted)->second) {
    conditions_.counts.bytes_posted += work.length;
  }
  if (work.inlined && work.length > pair.inline_max) {
    conditions_.violation = "more bytes inline than the queue pair has room for";
  }
  if (pair.work.size() >= pair.sends_max) {
    conditions_.violation = "more work requests than the send queue has room for";
  }
  pair.work.push_back(std::move(work));
  if (pair.state == IBV_QPS_ERR) {
    flush(pair, IBV_WC_WR_FLUSH_ERR);
  } else {
    pump(pair);
  }
}

/// Lets packets leave as far as the window goes.  Their bytes are read from memory now.
void RdmaNic::pump(RdmaQueuePair& pair) {
  while (pair.state == IBV_QPS_RTS && !failed_ && pair.to_send < pair.next &&
         pair.to_send < pair.confirmed + window && network_.now() >= pair.silent_until) {
    const auto at = std::find_if(pair.work.begin(), pair.work.end(), [&](const RdmaWork& work) {
      return pair.to_send < work.first + work.packets;
    });
    const RdmaWork& work = *at;
    const uint64_t index = pair.to_send - work.first;
    RdmaPacket packet;
    packet.number = pair.to_send;
    packet.opcode = work.opcode;
    packet.first = index == 0;
    packet.last = index + 1 == work.packets;
    packet.offset = static_cast<uint32_t>(index * pair.mtu);
    packet.length = work.length;
    packet.remote = work.remote + packet.offset;
    packet.key = work.key;
    packet.immediate = work.immediate;
    if (work.opcode != IBV_WR_RDMA_READ && !read_memory(pair, packet)) {
      break_pair(pair, IBV_WC_LOC_PROT_ERR);
      return;
    }
    conditions_.counts.sent_again += pair.to_send < pair.highest ? 1 : 0;
    ++pair.to_send;
    pair.highest = std::max(pair.highest, pair.to_send);
    send_packet(pair, std::move(packet));
    arm(pair);
  }
}

bool RdmaNic::read_memory(const RdmaQueuePair& pair, RdmaPacket& packet) const {
  const auto at = std::find_if(pair.work.begin(), pair.work.end(), [&](const RdmaWork& work) {
    return packet.number < work.first + work.packets;
  });
  const uint32_t end = std::min(at->length, packet.offset + pair.mtu);
  if (at->inlined) {
    packet.bytes.assign(at->copy.begin() + packet.offset, at->copy.begin() + end);
    return true;
  }
  uint32_t begin = 0;
  for (const ibv_sge& part : at->gathers) {
    const uint32_t from = std::max(packet.offset, begin);
    const uint32_t to = std::min(end, begin + part.length);
    if (from < to) {
      if (find_region(part.lkey, part.addr, part.length, true) == nullptr) {
        return false;
      }
      const auto* source = reinterpret_cast<const std::byte*>(part.addr) + (from - begin);
      packet.bytes.insert(packet.bytes.end(), source, source + (to - from));
    }
    begin += part.length;
  }
  return true;
}

void RdmaNic::send_packet(const RdmaQueuePair& pair, RdmaPacket packet) {
  packet.from = address_;
  packet.from_pair = pair.qp_num;
  packet.to_pair = pair.to_pair;
  ++conditions_.counts.packets;
  // A port without link, or an address that is not at that place of the table any more.
  if (failed_ || !up_ || pair.gid_place != gid_place_) {
    ++conditions_.counts.lost;
    return;
  }
  const Duration wire(static_cast<int64_t>(packet.bytes.size() + 64) / bytes_per_ns + 1);
  transmit(pair.to, wire, packet);
}

void RdmaNic::transmit(Ip to, Duration wire_time, const RdmaPacket& packet) {
  const Link& way = network_.link(address_, to);
  if (network_.blocked(address_, to)) {
    ++network_.counts_.cut;
    return;
  }
  wire_free_ = std::max(wire_free_, network_.now()) + wire_time;
  if (random_.chance(way.drop)) {
    ++network_.counts_.dropped;
    ++conditions_.counts.lost;
    return;
  }
  const int copies = random_.chance(way.duplicate) ? 2 : 1;
  network_.counts_.duplicated += copies == 2 ? 1 : 0;
  for (int i = 0; i < copies; ++i) {
    Instant due = wire_free_ + way.delay;
    if (random_.chance(way.reorder)) {
      ++network_.counts_.reordered;
      due += Duration(random_.below(static_cast<uint64_t>(4 * way.delay.count() + 1)));
    }
    network_.at(due, [&network = network_, from = address_, to, packet] {
      const auto nic = network.rdma_.find(to);
      if (network.blocked(from, to) || nic == network.rdma_.end()) {
        ++network.counts_.cut;
        return;
      }
      network.mix(static_cast<uint64_t>(network.now().time_since_epoch().count()));
      network.mix(packet.number << 24 | packet.to_pair);
      nic->second->arrive(packet);
    });
  }
}

void RdmaNic::arrive(const RdmaPacket& packet) {
  RdmaQueuePair* pair = find(packet.to_pair);
  if (failed_ || !up_) {
    ++conditions_.counts.lost;
    return;
  }
  const bool connected = pair != nullptr && pair->to_pair == packet.from_pair &&
                         pair->to == packet.from &&
                         (pair->state == IBV_QPS_RTR || pair->state == IBV_QPS_RTS);
  if (!connected) {
    ++conditions_.counts.after_error;
    return;
  }
  if (packet.kind == RdmaPacket::request) {
    on_request(*pair, packet);
  } else {
    on_answer(*pair, packet);
  }
}

void RdmaNic::answer(const RdmaQueuePair& pair, uint8_t kind, uint64_t psn) {
  RdmaPacket packet;
  packet.kind = static_cast<RdmaPacket::Kind>(kind);
  packet.number = psn;
  send_packet(pair, std::move(packet));
}

void RdmaNic::on_request(RdmaQueuePair& pair, const RdmaPacket& packet) {
  if (packet.number < pair.expected) {
    answer(pair, RdmaPacket::acknowledgement, pair.expected);
    return;
  }
  if (packet.number > pair.expected) {
    if (!std::exchange(pair.complained, true)) {
      answer(pair, RdmaPacket::out_of_sequence, pair.expected);
    }
    return;
  }
  if (!take_request(pair, packet)) {
    return;
  }
  ++pair.expected;
  pair.complained = false;
  if (packet.last || pair.expected % acknowledged_every == 0) {
    answer(pair, RdmaPacket::acknowledgement, pair.expected);
  }
}

/// Puts the bytes in place and tells who waits for them; false: it could not be taken.
bool RdmaNic::take_request(RdmaQueuePair& pair, const RdmaPacket& packet) {
  const bool is_send = packet.opcode == IBV_WR_SEND || packet.opcode == IBV_WR_SEND_WITH_IMM;
  const bool immediate =
      packet.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || packet.opcode == IBV_WR_SEND_WITH_IMM;
  const bool consumes = packet.last && (is_send || immediate);
  if ((consumes || is_send) && pair.receives.empty()) {
    answer(pair, RdmaPacket::not_ready, packet.number);
    return false;
  }
  std::byte* target = nullptr;
  if (is_send) {
    const ibv_sge& buffer = pair.receives.front().buffer;
    if (packet.length > buffer.length ||
        find_region(buffer.lkey, buffer.addr, buffer.length, true) == nullptr) {
      answer(pair, RdmaPacket::refused, packet.number);
      break_pair(pair, IBV_WC_LOC_LEN_ERR);
      return false;
    }
    target = reinterpret_cast<std::byte*>(buffer.addr) + packet.offset;
  } else if (packet.length != 0) {
    if (find_region(packet.key, packet.remote - packet.offset, packet.length, false) == nullptr) {
      answer(pair, RdmaPacket::refused, packet.number);
      break_pair(pair, IBV_WC_LOC_ACCESS_ERR);
      return false;
    }
    target = reinterpret_cast<std::byte*>(packet.remote);
    if (packet.opcode == IBV_WR_RDMA_READ) {
      return true;
    }
    const auto counted = conditions_.counted.upper_bound(packet.remote);
    if (counted != conditions_.counted.begin() && packet.remote < std::prev(counted)->second) {
      conditions_.counts.bytes_landed += packet.bytes.size();
    }
  }
  if (!packet.bytes.empty()) {
    std::memcpy(target, packet.bytes.data(), packet.bytes.size());
  }
  if (consumes) {
    ibv_wc done{};
    done.wr_id = pair.receives.front().id;
    done.status = IBV_WC_SUCCESS;
    done.opcode = is_send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
    done.byte_len = packet.length;
    done.imm_data = packet.immediate;
    done.wc_flags = immediate ? unsigned{IBV_WC_WITH_IMM} : 0U;
    done.qp_num = pair.qp_num;
    pair.receives.pop_front();
    complete(pair.recv_cq, done);
  }
  return true;
}

void RdmaNic::acknowledged(RdmaQueuePair& pair, uint64_t below) {
  if (below <= pair.confirmed || below > pair.next) {
    return;
  }
  pair.confirmed = below;
  pair.to_send = std::max(pair.to_send, below);
  pair.retries = 0;
  pair.due = network_.now() + pair.timeout;
  while (!pair.work.empty() && pair.work.front().first + pair.work.front().packets <= below) {
    const RdmaWork work = std::move(pair.work.front());
    pair.work.pop_front();
    if (work.opcode == IBV_WR_RDMA_READ) {
      // All hosts live in one process: the bytes are taken from where they are.
      std::memcpy(reinterpret_cast<void*>(work.gathers.front().addr),
                  reinterpret_cast<const void*>(work.remote), work.length);
    }
    if (work.signaled) {
      ibv_wc done{};
      done.wr_id = work.id;
      done.status = IBV_WC_SUCCESS;
      done.opcode = work.opcode == IBV_WR_SEND || work.opcode == IBV_WR_SEND_WITH_IMM
                        ? IBV_WC_SEND
                        : IBV_WC_RDMA_WRITE;
      done.qp_num = pair.qp_num;
      complete(pair.send_cq, done);
    }
  }
}

void RdmaNic::on_answer(RdmaQueuePair& pair, const RdmaPacket& packet) {
  if (pair.state != IBV_QPS_RTS) {
    return;
  }
  acknowledged(pair, packet.number);
  switch (packet.kind) {
    case RdmaPacket::request:
    case RdmaPacket::acknowledgement:
      break;
    case RdmaPacket::out_of_sequence:
      pair.to_send = std::min(pair.to_send, std::max(packet.number, pair.confirmed));
      break;
    case RdmaPacket::not_ready:
      pair.to_send = std::min(pair.to_send, std::max(packet.number, pair.confirmed));
      pair.silent_until = network_.now() + pair.not_ready_wait;
      pair.due = pair.silent_until + pair.timeout;
      network_.at(pair.silent_until, [&network = network_, nic = address_, number = pair.qp_num] {
        if (const auto found = network.rdma_.find(nic); found != network.rdma_.end()) {
          if (RdmaQueuePair* waiting = found->second->find(number)) {
            found->second->pump(*waiting);
          }
        }
      });
      break;
    case RdmaPacket::refused:
      break_pair(pair, IBV_WC_REM_ACCESS_ERR);
      return;
  }
  pump(pair);
}

/// One event per queue pair, which moves on as answers come.
void RdmaNic::arm(RdmaQueuePair& pair) {
  if (pair.armed) {
    return;
  }
  pair.armed = true;
  pair.due = network_.now() + pair.timeout;
  network_.at(pair.due, [&network = network_, nic = address_, number = pair.qp_num] {
    if (const auto found = network.rdma_.find(nic); found != network.rdma_.end()) {
      found->second->on_timeout(number);
    }
  });
}

void RdmaNic::on_timeout(uint32_t number) {
  RdmaQueuePair* pair = find(number);
  if (pair == nullptr) {
    return;
  }
  pair->armed = false;
  if (pair->state != IBV_QPS_RTS || pair->confirmed == pair->to_send || failed_) {
    return;
  }
  if (network_.now() < pair->due) {
    const Instant due = pair->due;
    pair->armed = true;
    network_.at(due, [&network = network_, nic = address_, number] {
      if (const auto found = network.rdma_.find(nic); found != network.rdma_.end()) {
        found->second->on_timeout(number);
      }
    });
    return;
  }
  if (++pair->retries > pair->retries_max) {
    break_pair(*pair, IBV_WC_RETRY_EXC_ERR);
    return;
  }
  pair->to_send = pair->confirmed;
  pump(*pair);
}

void RdmaNic::break_pair(RdmaQueuePair& pair, ibv_wc_status first) {
  if (pair.state != IBV_QPS_ERR) {
    pair.state = IBV_QPS_ERR;
    flush(pair, first);
  }
}

/// Everything comes back, also what nobody asked a completion for.
void RdmaNic::flush(RdmaQueuePair& pair, ibv_wc_status first) {
  const bool at_receiver = first == IBV_WC_LOC_LEN_ERR || first == IBV_WC_LOC_ACCESS_ERR;
  for (RdmaWork& work : std::exchange(pair.work, {})) {
    ibv_wc done{};
    done.wr_id = work.id;
    done.status = at_receiver ? IBV_WC_WR_FLUSH_ERR : std::exchange(first, IBV_WC_WR_FLUSH_ERR);
    done.qp_num = pair.qp_num;
    complete(pair.send_cq, done);
  }
  for (const RdmaReceive& receive : std::exchange(pair.receives, {})) {
    ibv_wc done{};
    done.wr_id = receive.id;
    done.status = first == IBV_WC_LOC_LEN_ERR ? std::exchange(first, IBV_WC_WR_FLUSH_ERR)
                                              : IBV_WC_WR_FLUSH_ERR;
    done.qp_num = pair.qp_num;
    complete(pair.recv_cq, done);
  }
}

void RdmaNic::complete(ibv_cq* queue, const ibv_wc& completion) {
  auto& into = *static_cast<CompletionQueue*>(queue);
  if (failed_) {
    return;
  }
  Instant due = network_.now() + Duration(random_.below(1000));
  if (random_.chance(conditions_.late)) {
    ++conditions_.counts.late;
    due += Duration(random_.below(static_cast<uint64_t>(conditions_.latest.count()) + 1));
  }
  if (!into.entries.empty()) {
    due = std::max(due, into.entries.back().due);
  }
  if (into.entries.size() >= static_cast<size_t>(into.cqe)) {
    conditions_.violation = fmt::format("{}: a completion queue of {} overran", name_, into.cqe);
    return;
  }
  into.entries.push_back({due, completion});
  network_.stop_at(due);
}

}  // namespace nccl_ha::sim
