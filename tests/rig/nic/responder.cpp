// The side of a queue pair that carries out what its peer asks for.
#include <algorithm>
#include <cstring>

#include "tests/rig/nic/nic.h"
#include "tests/rig/nic/pair.h"

namespace nccl_ha::emulated {
namespace {

Header answer_to(const Header& header, PacketKind kind) {
  Header answer;
  answer.from_pair = header.to_pair;
  answer.to_pair = header.from_pair;
  answer.from = header.to;
  answer.to = header.from;
  answer.kind = kind;
  answer.sequence = header.sequence;
  return answer;
}

}  // namespace

void Pair::on_request(const Header& header, std::span<const char> payload) {
  if (header.sequence > expected_) {
    if (!told_of_gap_) {
      told_of_gap_ = true;
      Header expected = header;
      expected.sequence = expected_;
      refuse(expected, Refusal::sequence);
    }
    return;
  }
  if (header.sequence < expected_) {  // it came before, and its answer got lost
    if (header.kind == PacketKind::read) {
      respond(header);
    } else if (!std::exchange(owes_, true)) {
      nic_.owe(*this);
    }
    return;
  }
  told_of_gap_ = false;
  if (const auto refusal = execute(header, payload)) {
    refuse(header, *refusal);
    if (*refusal == Refusal::not_ready) {
      return;
    }
    ibv_async_event event{};
    event.event_type = *refusal == Refusal::access ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR;
    event.element.qp = this;
    owner_.events.push(event);
    stop(IBV_QPS_ERR);
    return;
  }
  ++expected_;
  if ((header.flags & packet_ask) != 0 && header.kind != PacketKind::read &&
      !std::exchange(owes_, true)) {
    nic_.owe(*this);
  }
}

std::optional<Refusal> Pair::execute(const Header& header, std::span<const char> payload) {
  if ((header.flags & packet_first) != 0) {
    received_ = 0;
  }
  switch (header.kind) {
    case PacketKind::write:
      return execute_write(header, payload);
    case PacketKind::send:
      return execute_send(header, payload);
    default:
      break;
  }
  Memory& memory = owner_.on->memory();
  if ((route_.access & IBV_ACCESS_REMOTE_READ) == 0 ||
      memory.find(header.key, header.address, header.length, pd, IBV_ACCESS_REMOTE_READ) ==
          nullptr) {
    return Refusal::access;
  }
  respond(header);
  return std::nullopt;
}

std::optional<Refusal> Pair::execute_write(const Header& header, std::span<const char> payload) {
  Memory& memory = owner_.on->memory();
  const bool immediate = (header.flags & packet_immediate) != 0;
  if (!payload.empty()) {
    const Region* region =
        (route_.access & IBV_ACCESS_REMOTE_WRITE) == 0
            ? nullptr
            : memory.find(header.key, header.address, payload.size(), pd, IBV_ACCESS_REMOTE_WRITE);
    if (region == nullptr) {
      return Refusal::access;
    }
    if (immediate && receives_.empty()) {
      return Refusal::not_ready;
    }
    owner_.on->state().counters.behind += pretended_ ? 1 : 0;
    memory.write(*region, header.address, payload.data(), payload.size(),
                 owner_.on->writes_behind());
  }
  if (immediate && receives_.empty()) {
    return Refusal::not_ready;
  }
  received_ += payload.size();
  if (immediate) {
    memory.land();
    complete_receive(IBV_WC_SUCCESS, header, static_cast<uint32_t>(received_));
  }
  return std::nullopt;
}

std::optional<Refusal> Pair::execute_send(const Header& header, std::span<const char> payload) {
  if (receives_.empty()) {
    return Refusal::not_ready;
  }
  Memory& memory = owner_.on->memory();
  const Piece& piece = receives_.front().piece;
  if (received_ + payload.size() > piece.length) {
    complete_receive(IBV_WC_LOC_LEN_ERR, header, 0);
    return Refusal::invalid;
  }
  if (!payload.empty()) {
    const Region* region = memory.find(piece.key, piece.address + received_, payload.size(), pd,
                                       IBV_ACCESS_LOCAL_WRITE);
    if (region == nullptr) {
      complete_receive(IBV_WC_LOC_PROT_ERR, header, 0);
      return Refusal::operation;
    }
    memory.write(*region, piece.address + received_, payload.data(), payload.size(), false);
  }
  received_ += payload.size();
  if ((header.flags & packet_last) != 0) {
    memory.land();
    complete_receive(IBV_WC_SUCCESS, header, static_cast<uint32_t>(received_));
  }
  return std::nullopt;
}

void Pair::respond(const Header& header) {
  Memory& memory = owner_.on->memory();
  memory.land();
  memory.push_to_gpus(UINT64_MAX);
  Header response = answer_to(header, PacketKind::response);
  for (uint64_t done = 0; done < header.length; done += nic_.settings().packet) {
    response.address = done;
    const iovec part{reinterpret_cast<void*>(header.address + done),
                     std::min<uint64_t>(nic_.settings().packet, header.length - done)};
    nic_.send(response, std::span(&part, 1));
  }
}

void Pair::acknowledge() {
  if (!std::exchange(owes_, false) || (state != IBV_QPS_RTR && state != IBV_QPS_RTS) || !moves()) {
    return;
  }
  Header answer;
  answer.from_pair = qp_num;
  answer.to_pair = route_.peer;
  answer.from = owner_.on->place(route_.port);
  answer.to = route_.to;
  answer.kind = PacketKind::ack;
  answer.sequence = expected_;
  nic_.send(answer, {});
}

void Pair::refuse(const Header& header, Refusal why) {
  Header answer = answer_to(header, PacketKind::nak);
  answer.refusal = why;
  answer.timer = route_.not_ready_timer;
  nic_.send(answer, {});
}

}  // namespace nccl_ha::emulated
