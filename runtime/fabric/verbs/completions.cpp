// What completes on RC queue pairs: completion queues, and what each completion means.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/mutation.h"
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
    case IBV_WC_REM_INV_REQ_ERR:
      return CompletionStatus::length_error;
    default:
      return CompletionStatus::device_fault;
  }
}

inline CompletionStatus status_of(ibv_wc_status status) {
  return status == IBV_WC_SUCCESS ? CompletionStatus::ok : failure_of(status);
}

}  // namespace

[[gnu::always_inline]] inline void VerbsPath::on_wc(const ibv_wc& wc, const WorkId& id) {
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
                                                      const SendSlot* slot) {
  break_path(status, explain(wc, slot));
}

[[gnu::always_inline]] inline void VerbsPath::finish_send(CompletionStatus status) {
  const SendSlot slot = sends_[send_head_ & send_mask_];
  ++send_head_;
  open_bytes_ -= slot.bytes;
  if (std::exchange(overdue_, false) && status == CompletionStatus::flushed) {
    status = CompletionStatus::retry_exceeded;
  }
  if (slot.internal != Internal::no) [[unlikely]] {
    if (status == CompletionStatus::ok && slot.internal != Internal::marker) {
      ++probes_acknowledged_;
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
  completion.kind = slot.kind;
  completion.status = status;
  completion.bytes = slot.bytes;
  owner_->on_completion(completion);
}

void VerbsPath::complete_send(CompletionStatus status) { finish_send(status); }

[[gnu::always_inline]] inline void VerbsPath::on_send(const ibv_wc& wc, uint32_t position) {
  const uint32_t ahead =
      (position - send_head_) &
      (mutated(Mutation::position_not_wrapped) ? UINT32_MAX : WorkId::position_mask);
  if (ahead >= send_tail_ - send_head_) {
    return;  // taken back before
  }
  ++progress_;
  const CompletionStatus status = status_of(wc.status);
  if (status != CompletionStatus::ok) [[unlikely]] {
    fail_for(status, wc, &sends_[position & send_mask_]);
  }
  // Success answers for all before it.  A failure does not: what nobody asked a completion for may
  // have arrived, or the device keeps it, as some do with what was posted before the error.  The
  // peer knows.
  const bool answers = status == CompletionStatus::ok || mutated(Mutation::failure_answers);
  for (uint32_t i = 0; i < ahead; ++i) [[unlikely]] {
      complete_send(answers ? CompletionStatus::ok : CompletionStatus::flushed);
    }
  finish_send(status);
}

[[gnu::always_inline]] inline void VerbsPath::on_receive(const ibv_wc& wc, uint32_t position) {
  const uint32_t ahead = (position - receive_head_) & WorkId::position_mask;
  if (ahead >= receive_tail_ - receive_head_) {
    return;
  }
  const CompletionStatus status = status_of(wc.status);
  if (status != CompletionStatus::ok) [[unlikely]] {
    fail_for(status, wc, nullptr);
    receive_returned_ = true;
    if (ahead != 0 && !mutated(Mutation::kept_receives_forgotten)) {
      return;  // the device keeps those before it: the destruction brings all of them back
    }
  }
  // Receives are used in order; one that was left out would be a fault of the device.
  const ReceiveSlot slot = receives_[position & receive_mask_];
  receive_head_ += ahead + 1;
  if (slot.internal) [[unlikely]] {
    if (status == CompletionStatus::ok) {
      ++probes_received_;
      check_ready();
    }
    return;
  }
  if (state_ == PathState::connecting) [[unlikely]] {
    // The peer sends data, so it has everything of ours: our own acknowledgements are on their way.
    probes_acknowledged_ = 2;
    check_ready();
    static_cast<void>(port_.report_states());
  }
  Completion completion;
  completion.id = slot.id;
  completion.path = this;
  completion.status = status;
  completion.kind = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? CompletionKind::receive_immediate
                                                           : CompletionKind::receive;
  if (status == CompletionStatus::ok) {
    completion.has_immediate = (wc.wc_flags & IBV_WC_WITH_IMM) != 0;
    completion.immediate = completion.has_immediate ? ntohl(wc.imm_data) : 0;
    completion.bytes = wc.byte_len;
  } else {
    completion.kind = CompletionKind::receive;  // an error leaves the opcode undefined
  }
  owner_->on_completion(completion);
}

[[gnu::noinline]] void VerbsPath::on_flush(const ibv_wc& wc, uint32_t position) {
  const uint32_t ahead = (position - flush_head_) & WorkId::position_mask;
  if (ahead >= flush_tail_ - flush_head_) {
    return;
  }
  const CompletionStatus status = status_of(wc.status);
  if (status != CompletionStatus::ok) {
    fail_for(status, wc, nullptr);
  }
  Completion completion;
  completion.id = flushes_[flush_head_ % flushes_.size()];
  ++flush_head_;
  completion.path = this;
  completion.kind = CompletionKind::flush;
  completion.status = status;
  owner_->on_completion(completion);
}

[[gnu::always_inline]] inline unsigned Port::poll_queue(Queue& queue) {
  std::array<ibv_wc, batch> completions;
  const int got = ibv_poll_cq(queue.cq, batch, completions.data());
  if (got < 0) [[unlikely]] {
    take_for_failed();
  }
  return got <= 0 ? 0 : take_completions(queue, completions, got);
}

/// What a completion queue holds that cannot be read is lost, and so is what will come.
[[gnu::cold, gnu::noinline]] void Port::take_for_failed() {
  if (!device_->fatal.exchange(true, std::memory_order_acq_rel)) {
    NHA_LOG_WARN("RDMA device {}: its completion queue cannot be read", device_->name());
  }
}

[[gnu::always_inline]] inline unsigned Port::take_completions(
    Queue& queue, std::array<ibv_wc, batch>& completions, int got) {
  unsigned count = 0;
  for (unsigned pass = 0; got > 0; ++pass) {
    for (int i = 0; i < got; ++i) {
      const ibv_wc& wc = completions[static_cast<size_t>(i)];
      const WorkId id = WorkId::unpack(wc.wr_id);
      VerbsPath* path = id.path < slots_.size() ? slots_[id.path].path : nullptr;
      if (path == nullptr || (slots_[id.path].generation != id.generation &&
                              !mutated(Mutation::generation_not_compared))) {
        ++statistics_.stale;
        continue;
      }
      path->on_wc(wc, id);
    }
    count += static_cast<unsigned>(got);
    if (got < batch || pass + 1 == pass_limit) {
      break;
    }
    got = ibv_poll_cq(queue.cq, batch, completions.data());
  }
  statistics_.completions += count;
  return count;
}

[[gnu::hot]] unsigned Port::poll(Clock& time) {
  static_cast<void>(time);  // most turns find nothing, and need no clock to see that
  unsigned work = 0;
  if (pending_work_) [[unlikely]] {
    work += dirty_ == nullptr ? 0 : flush_posts();
    if (armed_) {
      armed_ = false;
      take_events();
    }
  }
  for (size_t i = 0; i < queues_.size(); ++i) {
    work += poll_queue(queues_[i]);
  }
  if (device_->fatal.load(std::memory_order_relaxed) && !lost_) [[unlikely]] {
    work += fail_all();
  }
  return pending_work_ ? do_chores(work) : work;
}

/// Takes out all that is in it, also where one pass stops.  May end paths.
void Port::empty(size_t queue) {
  for (uint32_t looks = queues_[queue].room / batch + 2; looks != 0; --looks) {
    if (poll_queue(queues_[queue]) == 0) {
      return;
    }
  }
}

unsigned Port::look_at_fences() {
  unsigned count = 0;
  for (size_t i = 0; i < fences_.size(); ++i) {
    for (VerbsPath* path = fences_[i]; path != nullptr && path->fence_moves(); path = fences_[i]) {
      if (!mutated(Mutation::fence_unemptied)) {
        empty(path->queue_);
      }
      if (fences_[i] == path) {
        path->move_fence();
        ++count;
      }
    }
  }
  std::erase_if(fences_, [](const VerbsPath* path) {
    return path == nullptr || path->fence_ == VerbsPath::Fence::closed ||
           path->fence_ == VerbsPath::Fence::failed;
  });
  return count;
}

bool Port::prepare_sleep() {
  const bool moves = std::any_of(fences_.begin(), fences_.end(), [](const VerbsPath* path) {
    return path != nullptr && path->fence_moves();
  });
  if (dirty_ != nullptr || !state_events_.empty() || !needs_rx_refill_.empty() || moves) {
    return false;
  }
  armed_ = true;
  pending_work_ = true;
  for (Queue& queue : queues_) {
    if (ibv_req_notify_cq(queue.cq, 0) != 0) {
      return false;
    }
  }
  // What came before the request makes no event: one more look.
  unsigned work = 0;
  for (size_t i = 0; i < queues_.size(); ++i) {
    work += poll_queue(queues_[i]);
  }
  return work == 0 && needs_rx_refill_.empty();
}

}  // namespace nccl_ha::fabric::verbs
