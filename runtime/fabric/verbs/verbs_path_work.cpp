// Work requests of an RC queue pair: posting with one doorbell per batch, and what completes.
#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/mutation.h"
#include "runtime/fabric/verbs/verbs_path.h"

namespace nccl_ha::fabric::verbs {
namespace {

// A large message is worth a completion of its own: whoever waits for it can reuse its buffer.
constexpr uint32_t signal_bytes = 16384;
// A device reports a write when all of it has arrived.  No link is slower than 10 MB/s.
constexpr uint64_t slowest_ns_per_byte = 100;

}  // namespace

Errc VerbsPath::send_room() const {
  if (state_ != PathState::ready) {
    return state_ == PathState::error ? Errc::closed : Errc::again;
  }
  return send_tail_ - send_head_ >= options_.writes_max ? Errc::again : Errc::ok;
}

[[gnu::always_inline]] inline ibv_send_wr& VerbsPath::push(const SendSlot& slot,
                                                           std::span<const Gather> gathers,
                                                           bool can_inline) {
  const uint32_t position = send_tail_ & WorkId::position_mask;
  auto& sges = pending_sges_[pending_count_];
  uint32_t bytes = 0;
  static_assert(gathers_max == 2);
  const auto take = [&](size_t i) {
    bytes += gathers[i].length;
    sges[i] = {reinterpret_cast<uint64_t>(gathers[i].address), gathers[i].length, gathers[i].key};
  };
  if (!gathers.empty()) {
    take(0);
  }
  if (gathers.size() > 1) [[unlikely]] {
    take(1);
  }
  SendSlot& kept = sends_[send_tail_ & send_mask_];
  kept = slot;
  kept.bytes = bytes;
  ibv_send_wr& request = pending_[pending_count_++];
  request.wr_id = WorkId{slot_, generation_, WorkId::Lane::send, position}.pack();
  request.num_sge = static_cast<int>(gathers.size());
  request.send_flags =
      can_inline && bytes <= inline_max_ && bytes != 0 ? unsigned{IBV_SEND_INLINE} : 0U;
  progress_ += send_head_ == send_tail_ ? 1 : 0;
  open_bytes_ += bytes;
  ++send_tail_;
  return request;
}

[[gnu::hot]] Errc VerbsPath::post_write(const WritePost& post) {
  if (const Errc room = send_room(); room != Errc::ok) [[unlikely]] {
    return room;
  }
  ibv_send_wr& request = push({post.id, 0, CompletionKind::write, post.unsignaled, Internal::no},
                              std::span(post.gathers, post.gather_count), post.host_memory);
  request.opcode = post.has_immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  request.imm_data = htonl(post.immediate);
  request.wr.rdma.remote_addr = post.remote_address;
  request.wr.rdma.rkey = post.remote_key;
  if (post.last && !dirty_) [[likely]] {
    post_pending();
    port_.watch_posts();
  } else {
    port_.mark_dirty(*this);
  }
  return Errc::ok;
}

Errc VerbsPath::post_send(const SendPost& post) {
  if (const Errc room = send_room(); room != Errc::ok) [[unlikely]] {
    return room;
  }
  ibv_send_wr& request = push({post.id, 0, CompletionKind::send, false, Internal::no},
                              std::span(post.gathers, post.gather_count), false);
  request.opcode = post.has_immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
  request.imm_data = htonl(post.immediate);
  port_.mark_dirty(*this);
  return Errc::ok;
}

void VerbsPath::post_internal(Internal what, CompletionKind kind, std::span<const Gather> gathers) {
  push({0, 0, kind, false, what}, gathers, false).opcode =
      kind == CompletionKind::send ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
  port_.mark_dirty(*this);
}

Errc VerbsPath::post_receive(const ReceivePost& post) {
  if (state_ == PathState::error) {
    return Errc::closed;
  }
  if (receive_tail_ - receive_head_ >= options_.receives_max + 2) {
    return Errc::again;
  }
  if (post.length == 0 && state_ == PathState::ready) {
    // For the peer's next immediate but many: whoever waits for what just came is served first, and
    // the device is told of several together.
    receives_[receive_tail_++ & receive_mask_] = {post.id, false};
    if (++parked_ > options_.receives_spare && !needs_rx_refill_) [[unlikely]] {
      port_.be_thirsty(*this);
    }
    return Errc::ok;
  }
  hand_over_receives();
  ibv_sge sge{reinterpret_cast<uint64_t>(post.address), post.length, post.key};
  ibv_recv_wr request{};
  request.wr_id =
      WorkId{slot_, generation_, WorkId::Lane::receive, receive_tail_ & WorkId::position_mask}
          .pack();
  request.sg_list = &sge;
  request.num_sge = post.length == 0 ? 0 : 1;
  ibv_recv_wr* bad = nullptr;
  if (ibv_post_recv(qp_, &request, &bad) != 0) {
    return Errc::again;
  }
  receives_[receive_tail_ & receive_mask_] = {post.id, false};
  ++receive_tail_;
  return Errc::ok;
}

void VerbsPath::hand_over_receives() {
  for (uint32_t left = std::exchange(parked_, 0); left != 0;) {
    std::array<ibv_recv_wr, 16> requests;
    const uint32_t count = std::min(left, static_cast<uint32_t>(requests.size()));
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t position = (receive_tail_ - left + i) & WorkId::position_mask;
      requests[i] = {};
      requests[i].wr_id = WorkId{slot_, generation_, WorkId::Lane::receive, position}.pack();
      requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(qp_, requests.data(), &bad); error != 0) {
      own_receives_ = left - (bad == nullptr ? 0 : static_cast<uint32_t>(bad - requests.data()));
      break_path(
          CompletionStatus::device_fault,
          nccl_ha::fail(Errc::system,
                        fmt::format("RDMA device {}: cannot post receives", info_.device), error));
      return;
    }
    left -= count;
  }
}

Errc VerbsPath::post_flush(const FlushPost& post) {
  if (flush_qp_ == nullptr) {
    return state_ == PathState::error ? Errc::closed : Errc::invalid_usage;
  }
  if (state_ != PathState::ready) {
    return state_ == PathState::error ? Errc::closed : Errc::again;
  }
  if (flush_tail_ - flush_head_ >= flushes_.size()) {
    return Errc::again;
  }
  // One byte: memory may end behind the last one that was received.
  ibv_sge sge{reinterpret_cast<uint64_t>(port_.scratch_.data() + port_.scratch_.size() / 2), 1,
              port_.scratch_region_.local_key()};
  ibv_send_wr request{};
  request.wr_id =
      WorkId{slot_, generation_, WorkId::Lane::flush, flush_tail_ & WorkId::position_mask}.pack();
  request.sg_list = &sge;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = post.address;
  request.wr.rdma.rkey = post.remote_key;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(flush_qp_, &request, &bad); error != 0) {
    break_path(
        CompletionStatus::device_fault,
        nccl_ha::fail(Errc::system, fmt::format("RDMA device {}: cannot post a read", info_.device),
                      error));
    return Errc::closed;
  }
  flushes_[flush_tail_ % flushes_.size()] = post.id;
  ++flush_tail_;
  return Errc::ok;
}

void VerbsPath::flush_posts() {
  if (pending_count_ != 0) {
    post_pending();
  }
}

[[gnu::always_inline]] inline void VerbsPath::post_pending() {
  // What goes out may let the peer use as many receives as it was promised.
  if (parked_ > options_.receives_spare && !mutated(Mutation::receives_kept_back)) {
    hand_over_receives();
    if (state_ == PathState::error) [[unlikely]] {
      return;
    }
  }
  const size_t count = std::exchange(pending_count_, 0);
  const uint32_t first = send_tail_ - static_cast<uint32_t>(count);
  choose_signals(first, count);
  ++port_.statistics_.doorbells;
  port_.statistics_.work_requests += count;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(qp_, pending_.data(), &bad); error != 0) {
    own_sends_ = static_cast<uint32_t>(
        count - (bad == nullptr ? 0 : static_cast<size_t>(bad - pending_.data())));
    break_path(CompletionStatus::device_fault,
               nccl_ha::fail(Errc::system,
                             fmt::format("RDMA device {}: cannot post work", info_.device), error));
  }
}

/// Links the pending requests and says which of them complete.  One completion answers for all
/// before it, so only the last that somebody waits for asks for one, large ones, and now and then
/// one so that the ring keeps moving.
inline void VerbsPath::choose_signals(uint32_t first, size_t count) {
  const uint32_t unsignaled_max =
      mutated(Mutation::unsignaled_for_ever) ? UINT32_MAX : options_.writes_max / 4 + 1;
  if (count == 1) [[likely]] {
    ibv_send_wr& request = pending_[0];
    request.next = nullptr;
    if (!sends_[first & send_mask_].unsignaled || ++unsignaled_ >= unsignaled_max) {
      request.send_flags |= IBV_SEND_SIGNALED;
      unsignaled_ = 0;
    }
    return;
  }
  bool awaited = false;
  for (size_t i = count; i != 0; --i) {
    const size_t at = mutated(Mutation::first_signaled) ? count - i : i - 1;
    const SendSlot& slot = sends_[(first + at) & send_mask_];
    if (!slot.unsignaled && (!awaited || slot.bytes >= signal_bytes)) {
      awaited = true;
      pending_[at].send_flags |= IBV_SEND_SIGNALED;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    ibv_send_wr& request = pending_[i];
    if (++unsignaled_ >= unsignaled_max) {
      request.send_flags |= IBV_SEND_SIGNALED;
    }
    if ((request.send_flags & IBV_SEND_SIGNALED) != 0) {
      unsignaled_ = 0;
    }
    request.next = &pending_[i + 1];
  }
  pending_[count - 1].next = nullptr;
}

void VerbsPath::post_marker() {
  // Of no bytes: neither address nor key is looked at.
  post_internal(Internal::marker, CompletionKind::write, {});
}

bool VerbsPath::check_progress(const Moment& now) {
  if (state_ == PathState::error || send_head_ == send_tail_) {
    return false;
  }
  if (progress_ != seen_progress_) {
    seen_progress_ = progress_;
    progress_seen_ = now;
  }
  const Duration silent = now.ran_since(progress_seen_);
  if (unsignaled_ != 0 && !mutated(Mutation::marker_forgotten) &&
      silent > port_.options_.dead_after / 2) {
    post_marker();  // the newest posts report nothing by themselves
  }
  const Duration allowance = std::chrono::nanoseconds(open_bytes_ * slowest_ns_per_byte);
  if (silent > port_.options_.dead_after + allowance) {
    overdue_ = true;
    ibv_wc wc{};
    wc.status = IBV_WC_RETRY_EXC_ERR;
    break_path(CompletionStatus::retry_exceeded, explain(wc, &sends_[send_head_ & send_mask_]));
  }
  return true;
}

Error VerbsPath::explain(const ibv_wc& wc, const SendSlot* slot) const {
  const char* status = library_.completion.status_text(wc.status);
  const std::string who = describe();
  switch (wc.status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      if (slot != nullptr && slot->internal == Internal::full_probe) {
        return nccl_ha::fail(
            Errc::remote,
            fmt::format("{}: small packets get through, packets of the path MTU do not: make the "
                        "MTU of both hosts and of the switches between them agree",
                        who));
      }
      if (slot != nullptr && slot->internal == Internal::small_probe) {
        return nccl_ha::fail(Errc::remote,
                             fmt::format("{}: no packet gets through: check cables, VLAN, routes "
                                         "and that UDP port 4791 is not filtered",
                                         who));
      }
      return nccl_ha::fail(
          Errc::remote,
          fmt::format("{}: the peer acknowledges nothing any more: cable, switch port, "
                      "NIC or host is down ({})",
                      who, status));
    case IBV_WC_WR_FLUSH_ERR:
      return nccl_ha::fail(
          Errc::remote,
          fmt::format("{}: the queue pair went into error: the peer's request was refused or the "
                      "device reset it",
                      who));
    case IBV_WC_REM_ACCESS_ERR:
      return nccl_ha::fail(Errc::remote,
                           fmt::format("{}: the peer refused a write: its memory is not "
                                       "registered (any more)",
                                       who));
    case IBV_WC_LOC_PROT_ERR:
      return nccl_ha::fail(Errc::invalid_usage,
                           fmt::format("{}: local memory is not registered (any more)", who));
    default:
      return nccl_ha::fail(Errc::remote,
                           fmt::format("{}: {} (vendor code {:#x})", who, status, wc.vendor_err));
  }
}

}  // namespace nccl_ha::fabric::verbs
