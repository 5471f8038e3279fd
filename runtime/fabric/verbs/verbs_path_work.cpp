// Work requests of an RC queue pair: posting with one doorbell per batch, and whether the device
// gets on with them.
#include <arpa/inet.h>
#include <fmt/format.h>

#include "runtime/fabric/verbs/verbs_path.h"

namespace nccl_ha::fabric::verbs {
namespace {

// A device reports a write when all of it has arrived.  No link is slower than 10 MB/s.
constexpr uint64_t slowest_ns_per_byte = 100;

}  // namespace

Errc VerbsPath::send_room() const {
  if (state_ != PathState::ready) {
    return state_ == PathState::error ? Errc::closed : Errc::again;
  }
  return sends_.full() ? Errc::again : Errc::ok;
}

[[gnu::hot]] Errc VerbsPath::post_write(const WritePost& post) {
  if (const Errc room = send_room(); room != Errc::ok) [[unlikely]] {
    return room;
  }
  ibv_send_wr& request =
      sends_.push({post.id, 0, post.unsignaled, Internal::no},
                  std::span(post.gathers, post.gather_count), post.host_memory ? inline_max_ : 0);
  request.opcode = post.has_immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  request.imm_data = htonl(post.immediate);
  request.wr.rdma.remote_addr = post.remote_address;
  request.wr.rdma.rkey = post.remote_key;
  if (post.last && !links_.posted.listed) [[likely]] {
    ring_doorbell();
    env_.watch_posts();
  } else {
    env_.mark_posted(links_);
  }
  return Errc::ok;
}

ibv_send_wr& VerbsPath::post_internal(Internal what, std::span<const Gather> gathers) {
  env_.mark_posted(links_);
  return sends_.push({0, 0, false, what}, gathers, 0);
}

Errc VerbsPath::post_receive() {
  if (state_ == PathState::error) {
    return Errc::closed;
  }
  if (receives_.full()) {
    return Errc::again;
  }
  if (pair_ == nullptr) {
    receives_.hold();
    return Errc::ok;
  }
  if (state_ == PathState::ready) {
    // For the peer's next immediate but many: whoever waits for what just came is served first, and
    // the device is told of several together.
    receives_.hold();
    if (receives_.holds_too_many() && !links_.refill_listed) [[unlikely]] {
      env_.mark_refill(links_);
    }
    return Errc::ok;
  }
  return receives_.post(pair_) ? Errc::ok : Errc::again;
}

void VerbsPath::post_held_receives() {
  if (const int error = receives_.post_held(pair_); error != 0) {
    break_for("post receives", error);
  }
}

Errc VerbsPath::post_flush(const FlushPost& post) {
  if (!flushes_.is_open()) {
    return state_ == PathState::error ? Errc::closed : Errc::invalid_usage;
  }
  if (state_ != PathState::ready) {
    return state_ == PathState::error ? Errc::closed : Errc::again;
  }
  if (flushes_.full()) {
    return Errc::again;
  }
  if (const int error = flushes_.post(post, *scratch_); error != 0) {
    break_for("post a read", error);
    return Errc::closed;
  }
  return Errc::ok;
}

void VerbsPath::post_waiting() {
  if (sends_.waiting() != 0) {
    ring_doorbell();
  }
}

[[gnu::always_inline]] inline void VerbsPath::ring_doorbell() {
  // What goes out may let the peer use as many receives as it was promised.
  if (receives_.holds_too_many()) {
    post_held_receives();
    if (state_ == PathState::error) [[unlikely]] {
      return;
    }
  }
  ++env_.statistics.doorbells;
  env_.statistics.work_requests += sends_.waiting();
  if (const int error = sends_.post(pair_); error != 0) [[unlikely]] {
    break_for("post work", error);
  }
}

bool VerbsPath::check_progress(const Moment& now) {
  if (state_ == PathState::error || sends_.empty()) {
    return false;
  }
  const Duration silent = silence_.last(sends_.progress(), now);
  const Duration limit = env_.options.dead_after;
  if (sends_.ends_unsignaled() && silent > limit / 2) {
    // The newest posts report nothing by themselves.  Of no bytes: neither address nor key is
    // looked at.
    post_internal(Internal::marker, {}).opcode = IBV_WR_RDMA_WRITE;
  }
  const Duration allowance = std::chrono::nanoseconds(sends_.open_bytes() * slowest_ns_per_byte);
  if (silent > limit + allowance) {
    silence_.end();
    ibv_wc wc{};
    wc.status = IBV_WC_RETRY_EXC_ERR;
    break_path(CompletionStatus::retry_exceeded, explain(wc, &sends_.front()));
  }
  return true;
}

Error VerbsPath::explain(const ibv_wc& wc, const SendRing::Slot* slot) const {
  const char* status = env_.device->library().completion.status_text(wc.status);
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
