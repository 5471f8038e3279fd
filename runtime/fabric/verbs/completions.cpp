// What completes on RC queue pairs: completion queues, and what each completion means.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/fabric/verbs/port.h"
#include "runtime/fabric/verbs/verbs_path.h"

namespace nccl_ha::fabric::verbs {
namespace {

constexpr unsigned pass_limit = 8;  // batches per pass and queue, so that no queue starves others

[[gnu::cold, gnu::noinline]] CompletionStatus failure_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_WR_FLUSH_ERR:
      return CompletionStatus::flushed;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return CompletionStatus::retry_exceeded;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return CompletionStatus::local_protection;
    case IBV_WC_REM_ACCESS_ERR:
      return CompletionStatus::remote_access;
    case IBV_WC_LOC_LEN_ERR:
      return CompletionStatus::length_error;
    default:
      // Of IBV_WC_REM_INV_REQ_ERR too: a write names its memory and meets no receive that might be
      // too small, so that the peer's device has taken packets for what they are not, as Soft-RoCE
      // does after losses.
      return CompletionStatus::device_fault;
  }
}

inline CompletionStatus status_of(ibv_wc_status status) {
  return status == IBV_WC_SUCCESS ? CompletionStatus::ok : failure_of(status);
}

}  // namespace

[[gnu::always_inline]] inline void VerbsPath::on_completion(const ibv_wc& wc, const WorkId& id) {
  switch (id.lane) {
    case WorkId::Lane::send:
      on_send(wc, id.position);
      return;
    case WorkId::Lane::receive:
      on_receive(wc, id.position);
      return;
    case WorkId::Lane::flush:
      on_flush(wc, id.position);
      return;
  }
}

[[gnu::cold, gnu::noinline]] void VerbsPath::fail_for(CompletionStatus status, const ibv_wc& wc,
                                                      const SendRing::Slot* slot) {
  const bool flushed = status == CompletionStatus::flushed;
  if (state_ != PathState::error) {
    presumed_ = flushed;
    break_path(status, explain(wc, slot));
  } else if (std::exchange(presumed_, presumed_ && flushed) && !flushed) {
    // Devices order sends and receives as they like: of one failure the consequence came first.
    cause_ = status;
    error_ = explain(wc, slot);
  }
}

[[gnu::always_inline]] inline void VerbsPath::finish_send(CompletionStatus status) {
  const SendRing::Slot slot = sends_.pop();
  if (silence_.take_end() && status == CompletionStatus::flushed) {
    status = CompletionStatus::retry_exceeded;
  }
  if (slot.internal != Internal::no) [[unlikely]] {
    if (status == CompletionStatus::ok && slot.internal != Internal::marker) {
      handshake_.on_probe_acknowledged();
      check_ready();
    }
    return;
  }
  if (slot.unsignaled && status == CompletionStatus::ok) {
    return;
  }
  Completion completion;
  completion.id = slot.id;
  completion.path = this;
  completion.status = status;
  completion.bytes = slot.bytes;
  owner_->on_completion(completion);
}

void VerbsPath::complete_send(CompletionStatus status) { finish_send(status); }

[[gnu::always_inline]] inline void VerbsPath::on_send(const ibv_wc& wc, uint32_t position) {
  const uint32_t ahead = sends_.ahead_of(position);
  if (!sends_.holds(ahead)) {
    return;  // taken back before
  }
  const CompletionStatus status = status_of(wc.status);
  if (status != CompletionStatus::ok) [[unlikely]] {
    fail_for(status, wc, &sends_.at(position));
  }
  // Success answers for all before it.  A failure does not: what nobody asked a completion for may
  // have arrived, or the device keeps it, as some do with what was posted before the error.  The
  // peer knows.
  const bool answers = status == CompletionStatus::ok;
  for (uint32_t i = 0; i < ahead; ++i) [[unlikely]] {
      complete_send(answers ? CompletionStatus::ok : CompletionStatus::flushed);
    }
  finish_send(status);
}

[[gnu::always_inline]] inline void VerbsPath::on_receive(const ibv_wc& wc, uint32_t position) {
  const uint32_t ahead = receives_.ahead_of(position);
  if (!receives_.holds(ahead)) {
    return;
  }
  const CompletionStatus status = status_of(wc.status);
  if (status != CompletionStatus::ok) [[unlikely]] {
    fail_for(status, wc, nullptr);
    receives_.note_returned();
    if (ahead != 0 || receives_.keep_last(status)) {
      return;  // the device keeps those before it, or the fence brings the last one back
    }
  }
  // Receives are used in order; one that was left out would be a fault of the device.
  const ReceiveRing::Slot slot = receives_.pop_behind(ahead);
  if (slot.internal) [[unlikely]] {
    if (status == CompletionStatus::ok) {
      handshake_.on_probe_received();
      check_ready();
    }
    return;
  }
  if (state_ == PathState::connecting) [[unlikely]] {
    handshake_.on_data_received();
    check_ready();
    static_cast<void>(env_.report_states());
  }
  Completion completion;
  completion.path = this;
  completion.kind = CompletionKind::receive_immediate;
  completion.status = status;
  if (status == CompletionStatus::ok) {
    completion.has_immediate = (wc.wc_flags & IBV_WC_WITH_IMM) != 0;
    completion.immediate = completion.has_immediate ? ntohl(wc.imm_data) : 0;
    completion.bytes = wc.byte_len;
  }
  owner_->on_completion(completion);
}

[[gnu::noinline]] void VerbsPath::on_flush(const ibv_wc& wc, uint32_t position) {
  if (!flushes_.holds(position)) {
    return;
  }
  const CompletionStatus status = status_of(wc.status);
  if (status != CompletionStatus::ok) {
    fail_for(status, wc, nullptr);
  }
  Completion completion;
  completion.id = flushes_.pop();
  completion.path = this;
  completion.kind = CompletionKind::flush;
  completion.status = status;
  owner_->on_completion(completion);
}

[[gnu::always_inline]] inline unsigned Port::poll_queue(Queue& queue) {
  std::array<ibv_wc, batch> completions;
  const int got = queue.cq == nullptr ? 0 : ibv_poll_cq(queue.cq, batch, completions.data());
  if (got < 0 && !queue.lost) [[unlikely]] {
    NHA_LOG_WARN("RDMA device {}: a completion queue cannot be read", env_.device->name());
    return retire(queue);
  }
  return got <= 0 ? 0 : take_completions(queue, completions, got);
}

[[gnu::always_inline]] inline unsigned Port::take_completions(
    Queue& queue, std::array<ibv_wc, batch>& completions, int got) {
  unsigned count = 0;
  for (unsigned pass = 0; got > 0; ++pass) {
    for (int i = 0; i < got; ++i) {
      const ibv_wc& wc = completions[static_cast<size_t>(i)];
      const WorkId id = WorkId::unpack(wc.wr_id);
      VerbsPath* path = find(id.path, id.generation);
      if (path == nullptr) {
        ++env_.statistics.stale;
        continue;
      }
      path->on_completion(wc, id);
    }
    count += static_cast<unsigned>(got);
    if (got < batch || pass + 1 == pass_limit) {
      break;
    }
    got = ibv_poll_cq(queue.cq, batch, completions.data());
  }
  env_.statistics.completions += count;
  return count;
}

[[gnu::hot]] unsigned Port::poll(Clock& time) {
  static_cast<void>(time);  // most turns find nothing, and need no clock to see that
  unsigned work = 0;
  if (env_.done->any()) [[unlikely]] {
    work += take_done();
  }
  if (pending_work_) [[unlikely]] {
    work += env_.posted.empty() ? 0 : post_waiting();
    if (armed_) {
      armed_ = false;
      take_events();
    }
  }
  for (size_t i = 0; i < queues_.size(); ++i) {
    work += poll_queue(queues_[i]);
  }
  if (!env_.device->health.usable() && !lost_) [[unlikely]] {
    work += fail_all();
  }
  if (env_.device->faults.count() != faults_seen_) [[unlikely]] {
    work += take_faults();
  }
  return pending_work_ ? do_pending_work(work) : work;
}

/// Takes out all that is in it, also where one pass stops.  May end paths.
void Port::drain(size_t queue) {
  for (uint32_t looks = queues_[queue].shared->room() / batch + 2; looks != 0; --looks) {
    if (poll_queue(queues_[queue]) == 0) {
      return;
    }
  }
}

unsigned Port::move_fences() {
  PathList& fences = env_.fences;
  unsigned count = 0;
  for (size_t i = 0; i < fences.size(); ++i) {
    for (VerbsPath* path = fences[i]; path != nullptr && path->fence_moves(); path = fences[i]) {
      drain(path->place().queue);
      if (fences[i] == path) {
        path->move_fence();
        ++count;
      }
    }
  }
  fences.drop_if([](const VerbsPath& path) { return path.fence_over(); });
  return count;
}

bool Port::prepare_sleep() {
  const bool moves = std::any_of(env_.fences.begin(), env_.fences.end(), [](const VerbsPath* path) {
    return path != nullptr && path->fence_moves();
  });
  if (!env_.posted.empty() || !env_.states.empty() || !env_.refills.empty() || moves ||
      env_.done->any()) {
    return false;
  }
  armed_ = true;
  pending_work_ = true;
  for (Queue& queue : queues_) {
    // A device that failed makes no events any more.
    if (queue.cq != nullptr && !queue.lost && env_.device->health.usable() &&
        ibv_req_notify_cq(queue.cq, 0) != 0) {
      return false;
    }
  }
  // What came before the request makes no event: one more look.
  unsigned work = 0;
  for (size_t i = 0; i < queues_.size(); ++i) {
    work += poll_queue(queues_[i]);
  }
  return work == 0 && env_.refills.empty();
}

}  // namespace nccl_ha::fabric::verbs
