// The side of a queue pair that asks: packets, their answers, and sending again.
#include <algorithm>
#include <array>
#include <cstdio>

#include "tests/rig/nic/nic.h"
#include "tests/rig/nic/pair.h"

namespace nccl_ha::emulated {
namespace {

constexpr uint64_t ask_every = 8;  // packets
constexpr uint32_t for_ever = 7;   // rnr_retry, IBTA 9.7.5.2.8

/// Nanoseconds by IBTA's table 46.
uint64_t not_ready_time(uint8_t code) {
  constexpr std::array<uint64_t, 32> microseconds{
      655360, 10,    20,    30,    40,    60,     80,     120,    160,    240,   320,
      480,    640,   960,   1280,  1920,  2560,   3840,   5120,   7680,   10240, 15360,
      20480,  30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520};
  return microseconds[code % microseconds.size()] * 1000;
}

ibv_wc_status status_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::access:
      return IBV_WC_REM_ACCESS_ERR;
    case Refusal::invalid:
      return IBV_WC_REM_INV_REQ_ERR;
    default:
      return IBV_WC_REM_OP_ERR;
  }
}

/// The part of the pieces that begins at `offset`.
size_t cut_out_part(const std::vector<Piece>& pieces, uint64_t offset, uint64_t length,
                    std::array<iovec, pieces_max + 1>* out) {
  size_t count = 0;
  for (const Piece& piece : pieces) {
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    const uint64_t part = std::min(piece.length - offset, length);
    if (part == 0) {
      break;
    }
    (*out)[count++] = {reinterpret_cast<void*>(piece.address + offset), part};
    length -= part;
    offset = 0;
  }
  return count;
}

}  // namespace

Send* Pair::find(uint64_t sequence) {
  // Few are open at a time, and most are looked for from the front.
  const auto found = std::partition_point(sends_.begin(), sends_.end(), [&](const Send& send) {
    return send.first + send.packets <= sequence;
  });
  return found == sends_.end() ? nullptr : &*found;
}

ibv_wc_status Pair::check_local(const Send& send) const {
  if (send.forbidden) {
    return IBV_WC_BAD_RESP_ERR;
  }
  if (send.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || send.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    return IBV_WC_REM_INV_REQ_ERR;  // not emulated
  }
  const uint32_t access = send.reads() ? uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0U;
  for (const Piece& piece : send.pieces) {
    if (owner_.on->memory().find(piece.key, piece.address, piece.length, pd, access) == nullptr) {
      return IBV_WC_LOC_PROT_ERR;
    }
  }
  return IBV_WC_SUCCESS;
}

void Pair::pump() {
  if (state != IBV_QPS_RTS || !moves()) {
    return;
  }
  if (datagrams()) {
    while (!sends_.empty()) {
      Send send = std::move(sends_.front());
      sends_.pop_front();
      send_datagram(send);
    }
    return;
  }
  const uint64_t now = now_ns();
  if (now >= not_ready_until_) {
    while (to_send_ < next_sequence_ && to_send_ - acknowledged_ < nic_.settings().window &&
           nic_.wire().ready(route_.peer)) {
      Send* send = find(to_send_);
      const uint64_t sequence = to_send_;
      if (send == nullptr || !send_packet(*send, sequence)) {
        break;
      }
      to_send_ = sequence + 1;
    }
  }
  arm(now);
}

/// False where it must not go out (yet).
bool Pair::send_packet(Send& send, uint64_t sequence) {
  if (const ibv_wc_status local = check_local(send); local != IBV_WC_SUCCESS) {
    // Found out when it is this request's turn, which is after those before it have answers.
    if (&send == &sends_.front()) {
      if (send.forbidden) {
        ++owner_.on->state().counters.forbidden;
        std::fprintf(stderr, "emulated NIC: queue pair %u asks for opcode %d, which is forbidden\n",
                     qp_num, static_cast<int>(send.opcode));
      }
      fail_front(local);
    }
    return false;
  }
  const uint64_t packet = nic_.settings().packet;
  const uint64_t offset = (sequence - send.first) * packet;
  const uint64_t length = send.reads() ? 0 : std::min<uint64_t>(packet, send.bytes - offset);
  Header header;
  header.from_pair = qp_num;
  header.to_pair = route_.peer;
  header.from = owner_.on->place(route_.port);
  header.to = route_.to;
  header.kind = send.reads() ? PacketKind::read
                : send.opcode == IBV_WR_SEND || send.opcode == IBV_WR_SEND_WITH_IMM
                    ? PacketKind::send
                    : PacketKind::write;
  header.sequence = sequence;
  header.address = send.address + offset;
  header.key = send.key;
  header.length = send.reads() ? send.bytes : 0;
  const bool last = sequence + 1 == send.first + send.packets;
  header.flags = static_cast<uint8_t>((offset == 0 ? packet_first : 0) | (last ? packet_last : 0));
  if (last || sequence % ask_every == 0) {
    header.flags |= packet_ask;
  }
  if (last && (send.opcode == IBV_WR_SEND_WITH_IMM || send.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)) {
    header.flags |= packet_immediate;
    header.immediate = send.immediate;
  }
  send.came_back = 0;
  std::array<iovec, pieces_max + 1> parts{};
  size_t count = 0;
  if (!send.inlined.empty() && length != 0) {
    parts[count++] = {send.inlined.data() + offset, length};
  } else {
    count = cut_out_part(send.pieces, offset, length, &parts);
  }
  nic_.send(header, std::span(parts).first(count));
  return true;
}

/// When to look whether an answer is due.
void Pair::arm(uint64_t now) {
  uint64_t when = 0;
  if (state == IBV_QPS_RTS && to_send_ != acknowledged_ && route_.retry_after != 0) {
    deadline_ = deadline_ == 0 ? now + route_.retry_after : deadline_;
    when = deadline_;
  } else {
    deadline_ = 0;
  }
  if (not_ready_until_ > now) {
    when = when == 0 ? not_ready_until_ : std::min(when, not_ready_until_);
  }
  // One that comes early looks and arms again: most answers come long before.
  if (when == 0 ? timer != 0 : timer == 0 || timer > when) {
    nic_.set_timer(*this, when);
  }
}

void Pair::on_time(uint64_t now) {
  if (state != IBV_QPS_RTS || silent_) {
    return;
  }
  if (!moves()) {
    nic_.set_timer(*this, now + 10'000'000);  // it may come back
    deadline_ = 0;
    return;
  }
  if (deadline_ != 0 && now >= deadline_ && to_send_ != acknowledged_) {
    ++owner_.on->state().counters.retries;
    if (retries_ == route_.retry_max) {
      fail_front(IBV_WC_RETRY_EXC_ERR);
      return;
    }
    ++retries_;
    go_back(acknowledged_);
  }
  pump();
}

void Pair::go_back(uint64_t sequence) {
  to_send_ = std::max(sequence, acknowledged_);
  deadline_ = 0;
}

void Pair::on_acknowledged(uint64_t sequence) {
  sequence = std::min(sequence, to_send_);
  while (!sends_.empty()) {
    const Send& front = sends_.front();
    const bool answered = front.reads() ? front.came_back >= front.bytes && front.bytes != 0
                                        : front.first + front.packets <= sequence;
    if (!answered) {
      // A read whose data got lost holds up what comes after it.
      sequence = front.reads() ? std::min(sequence, front.first) : sequence;
      break;
    }
    acknowledged_ = std::max(acknowledged_, front.first + front.packets);
    const Send done = std::move(sends_.front());
    sends_.pop_front();
    retries_ = not_ready_ = 0;
    deadline_ = 0;
    complete_send(done, IBV_WC_SUCCESS);
  }
  if (sequence > acknowledged_) {
    acknowledged_ = sequence;
    retries_ = not_ready_ = 0;
    deadline_ = 0;
  }
}

void Pair::on_refused(const Header& header) {
  if (header.sequence < acknowledged_ || header.sequence >= to_send_) {
    return;  // an old one
  }
  on_acknowledged(header.sequence);
  if (state != IBV_QPS_RTS) {
    return;
  }
  switch (header.refusal) {
    case Refusal::sequence:
      go_back(header.sequence);
      return;
    case Refusal::not_ready:
      if (route_.not_ready_max != for_ever && not_ready_ == route_.not_ready_max) {
        fail_front(IBV_WC_RNR_RETRY_EXC_ERR);
        return;
      }
      ++not_ready_;
      ++owner_.on->state().counters.not_ready;
      go_back(header.sequence);
      not_ready_until_ = now_ns() + not_ready_time(header.timer);
      return;
    default:
      fail_front(status_of(header.refusal));
      return;
  }
}

void Pair::on_response(const Header& header, std::span<const char> payload) {
  Send* send = find(header.sequence);
  if (send == nullptr || !send->reads() || send->first != header.sequence ||
      header.address != send->came_back) {
    return;
  }
  std::array<iovec, pieces_max + 1> parts{};
  const size_t count = cut_out_part(send->pieces, header.address, payload.size(), &parts);
  size_t done = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto* from = payload.data() + done;
    std::copy(from, from + parts[i].iov_len, static_cast<char*>(parts[i].iov_base));
    done += parts[i].iov_len;
  }
  send->came_back += payload.size();
  deadline_ = 0;
  if (send->came_back >= send->bytes) {
    on_acknowledged(header.sequence + 1);
  }
}

/// The first request without an answer.
void Pair::fail_front(ibv_wc_status status) {
  if (sends_.empty()) {
    return;
  }
  const Send failed = std::move(sends_.front());
  sends_.pop_front();
  complete_send(failed, status);
  stop(IBV_QPS_ERR);
}

}  // namespace nccl_ha::emulated
