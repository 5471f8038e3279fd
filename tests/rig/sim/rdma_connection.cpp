// Reliable connections over simulated RDMA NICs: requester and responder (IBTA 9.7).
#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/rig/sim/rdma_objects.h"

namespace nccl_ha::sim {
namespace {

constexpr uint64_t acknowledged_every = 16;

}  // namespace

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
  work.packets = std::max<uint64_t>(1, (uint64_t{work.length} + pair.mtu - 1) / pair.mtu);
  count_posted(pair, work);
  if (work.inlined && work.length > pair.inline_max) {
    conditions_.violation = "more bytes inline than the queue pair has room for";
  }
  if (pair.requester.open() >= pair.sends_max) {
    conditions_.violation = "more work requests than the send queue has room for";
  }
  if (work.length > traits_.message_max) {
    conditions_.violation = "a message is larger than the port takes";
  }
  pair.requester.post(std::move(work));
  if (pair.state == IBV_QPS_ERR) {
    if (!pair.lags) {
      flush(pair, IBV_WC_WR_FLUSH_ERR);
    }
  } else {
    pump(pair);
  }
}

/// Bytes into memory of which every byte is counted.
void RdmaNic::count_posted(RdmaQueuePair& pair, const RdmaWork& work) {
  const auto counted = conditions_.counted.upper_bound(work.remote);
  const bool announces = work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  const bool writes = work.opcode == IBV_WR_RDMA_WRITE || announces;
  if (writes && counted != conditions_.counted.begin() &&
      work.remote < std::prev(counted)->second) {
    conditions_.counts.bytes_posted += work.length;
    set_half_posted(pair, !announces);
  } else if (announces) {
    set_half_posted(pair, false);
  }
}

void RdmaNic::set_half_posted(RdmaQueuePair& pair, bool half) {
  half = half && pair.state != IBV_QPS_ERR;
  if (pair.half_posted != half) {
    pair.half_posted = half;
    conditions_.half_posted = half ? conditions_.half_posted + 1 : conditions_.half_posted - 1;
  }
}

/// Lets packets leave as far as the window goes.  Their bytes are read from memory now.
void RdmaNic::pump(RdmaQueuePair& pair) {
  RdmaRequester& requester = pair.requester;
  while (pair.state == IBV_QPS_RTS && !failed_ && requester.may_send(network_.now())) {
    const RdmaWork& work = requester.sending();
    const uint64_t index = requester.to_send() - work.first;
    RdmaPacket& packet = new_packet();
    packet.kind = RdmaPacket::request;
    packet.to = pair.to;
    packet.to_pair = pair.to_pair;
    packet.number = requester.to_send();
    packet.opcode = work.opcode;
    packet.first = index == 0;
    packet.last = index + 1 == work.packets;
    packet.offset = static_cast<uint32_t>(index * pair.mtu);
    packet.length = work.length;
    packet.remote = work.remote + packet.offset;
    packet.key = work.key;
    packet.immediate = work.immediate;
    if (work.opcode != IBV_WR_RDMA_READ && !read_memory(pair, work, packet)) {
      drop(packet);
      ++conditions_.counts.refused;
      break_pair(pair, IBV_WC_LOC_PROT_ERR);
      return;
    }
    conditions_.counts.sent_again += requester.sent(network_.now()) ? 1 : 0;
    send_packet(pair, packet);
    if (!requester.armed()) {
      arm_timeout(pair, requester.begin_timeout(network_.now()));
    }
  }
}

bool RdmaNic::read_memory(const RdmaQueuePair& pair, const RdmaWork& work,
                          RdmaPacket& packet) const {
  const uint32_t end = std::min(work.length, packet.offset + pair.mtu);
  if (work.inlined) {
    packet.bytes.assign(work.copy.begin() + packet.offset, work.copy.begin() + end);
    return true;
  }
  uint32_t begin = 0;
  for (const ibv_sge& part : work.gathers) {
    const uint32_t from = std::max(packet.offset, begin);
    const uint32_t to = std::min(end, begin + part.length);
    if (from < to) {
      if (find_region(pair.pd, part.lkey, part.addr, part.length, true) == nullptr) {
        return false;
      }
      const auto* source = reinterpret_cast<const std::byte*>(part.addr) + (from - begin);
      packet.bytes.insert(packet.bytes.end(), source, source + (to - from));
    }
    begin += part.length;
  }
  return true;
}

void RdmaNic::answer(const RdmaQueuePair& pair, uint8_t kind, uint64_t number) {
  RdmaPacket& packet = new_packet();
  packet.kind = static_cast<RdmaPacket::Kind>(kind);
  packet.to = pair.to;
  packet.to_pair = pair.to_pair;
  packet.number = number;
  send_packet(pair, packet);
}

void RdmaNic::on_request(RdmaQueuePair& pair, const RdmaPacket& packet) {
  RdmaResponder& responder = pair.responder;
  switch (responder.order_of(packet.number)) {
    case RdmaResponder::Order::repeated:
      answer(pair, RdmaPacket::acknowledgement, responder.expected());
      return;
    case RdmaResponder::Order::early:
      if (responder.complain()) {
        answer(pair, RdmaPacket::out_of_sequence, responder.expected());
      }
      return;
    case RdmaResponder::Order::expected:
      break;
  }
  if (!take_request(pair, packet)) {
    return;
  }
  responder.advance();
  if (packet.last || responder.expected() % acknowledged_every == 0) {
    answer(pair, RdmaPacket::acknowledgement, responder.expected());
  }
}

/// Puts the bytes in place and tells who waits for them; false: it could not be taken.
bool RdmaNic::take_request(RdmaQueuePair& pair, const RdmaPacket& packet) {
  const bool is_send = packet.opcode == IBV_WR_SEND || packet.opcode == IBV_WR_SEND_WITH_IMM;
  const bool immediate =
      packet.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || packet.opcode == IBV_WR_SEND_WITH_IMM;
  const bool consumes = packet.last && (is_send || immediate);
  if ((consumes || is_send) && pair.responder.empty()) {
    answer(pair, RdmaPacket::not_ready, packet.number);
    return false;
  }
  std::byte* target = nullptr;
  const Region* region = nullptr;
  if (is_send) {
    const ibv_sge& buffer = pair.responder.front().buffer;
    region = find_region(pair.pd, buffer.lkey, buffer.addr, buffer.length, true);
    if (packet.length > buffer.length || region == nullptr) {
      answer(pair, RdmaPacket::refused, packet.number);
      break_pair(pair, IBV_WC_LOC_LEN_ERR);
      return false;
    }
    target = reinterpret_cast<std::byte*>(buffer.addr) + packet.offset;
  } else if (packet.length != 0) {
    const bool unknown =
        packet.remote >= conditions_.unknown.first && packet.remote < conditions_.unknown.second;
    region = find_region(pair.pd, packet.key, packet.remote - packet.offset, packet.length, false);
    if (region == nullptr || unknown) {
      ++conditions_.counts.refused;
      answer(pair, RdmaPacket::refused, packet.number);
      break_pair(pair, IBV_WC_LOC_ACCESS_ERR);
      return false;
    }
    target = reinterpret_cast<std::byte*>(packet.remote);
    if (packet.opcode == IBV_WR_RDMA_READ) {
      memory_.flush_gpu();
      return true;
    }
    const auto counted = conditions_.counted.upper_bound(packet.remote);
    if (counted != conditions_.counted.begin() && packet.remote < std::prev(counted)->second) {
      conditions_.counts.bytes_landed += packet.bytes.size();
    }
  }
  if (!packet.bytes.empty()) {
    write(pair, *region, target, packet.bytes);
  }
  if (consumes) {
    ibv_wc done{};
    done.wr_id = pair.responder.take().id;
    done.status = IBV_WC_SUCCESS;
    done.opcode = is_send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
    done.byte_len = packet.length;
    done.imm_data = packet.immediate;
    done.wc_flags = immediate ? unsigned{IBV_WC_WITH_IMM} : 0U;
    complete(pair, true, done);
  }
  return true;
}

void RdmaNic::acknowledged(RdmaQueuePair& pair, uint64_t below) {
  pair.requester.confirm(below, network_.now());
  while (const auto done_work = pair.requester.take_done()) {
    const RdmaWork& work = *done_work;
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
      complete(pair, false, done);
    }
  }
}

void RdmaNic::on_answer(RdmaQueuePair& pair, const RdmaPacket& packet) {
  if (pair.state != IBV_QPS_RTS && !pair.lags) {
    return;
  }
  acknowledged(pair, packet.number);
  switch (packet.kind) {
    case RdmaPacket::request:
    case RdmaPacket::acknowledgement:
    case RdmaPacket::datagram:
      break;
    case RdmaPacket::out_of_sequence:
      pair.requester.go_back_to(packet.number);
      break;
    case RdmaPacket::not_ready: {
      pair.requester.go_back_to(packet.number);
      const Instant then = network_.now() + pair.not_ready_wait;
      pair.requester.stay_silent_until(then);
      network_.at(then, [this, number = pair.qp_num] {
        if (RdmaQueuePair* waiting = find(number)) {
          pump(*waiting);
        }
      });
      break;
    }
    case RdmaPacket::refused:
      break_pair(pair, IBV_WC_REM_ACCESS_ERR);
      return;
  }
  pump(pair);
}

/// One event per queue pair, which moves on as answers come.
void RdmaNic::arm_timeout(const RdmaQueuePair& pair, Instant due) {
  network_.at(due, [this, number = pair.qp_num] { on_timeout(number); });
}

void RdmaNic::on_timeout(uint32_t number) {
  RdmaQueuePair* pair = find(number);
  if (pair == nullptr) {
    return;
  }
  RdmaRequester& requester = pair->requester;
  requester.end_timeout();
  if (pair->state != IBV_QPS_RTS || requester.idle() || failed_) {
    return;
  }
  if (network_.now() < requester.due()) {
    arm_timeout(*pair, requester.resume_timeout());
    return;
  }
  if (!requester.retry()) {
    break_pair(*pair, IBV_WC_RETRY_EXC_ERR);
    return;
  }
  ++conditions_.counts.stalled;
  pump(*pair);
}

}  // namespace nccl_ha::sim
