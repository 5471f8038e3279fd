// The end of an RC queue pair: until when it may still touch memory, and who says so.
//
// In ERR the device takes nothing of the peer's any more and gives back what it was given; when all
// of that is here, nothing can land.  Some devices keep a part: Soft-RoCE never looks again at
// receives that are posted after the change, whence nothing is posted any more.  Then the queue
// pair is destroyed: once that has returned nothing can land either.  Time by itself proves
// nothing.
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/mutation.h"
#include "runtime/fabric/verbs/verbs_path.h"

namespace nccl_ha::fabric::verbs {
namespace {

/// Between looks at whether a queue pair is gone.
constexpr Duration destruction_interval = std::chrono::microseconds(500);

}  // namespace

void VerbsPath::fail(const Error& why) {
  if (state_ != PathState::error) {
    break_path(CompletionStatus::flushed, why);
  }
}

void VerbsPath::break_path(CompletionStatus cause, const Error& why) {
  if (state_ == PathState::error) {
    return;
  }
  state_ = PathState::error;
  error_ = why;
  cause_ = cause;
  own_sends_ += static_cast<uint32_t>(std::exchange(pending_count_, 0));
  own_receives_ += std::exchange(parked_, 0);
  fence_ = Fence::flushing;
  broken_at_ = port_.env_.clock->now();
  lost_before_ = lost_time();
  seen_returned_ = send_head_ + receive_head_ + flush_head_;
  Duration wait = port_.options_.flush_wait;
  for (ibv_qp* qp : {qp_, flush_qp_}) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    const int error = qp == nullptr || mutated(Mutation::queue_pair_not_stopped)
                          ? 0
                          : library_.queue_pair.modify(qp, &attributes, IBV_QP_STATE);
    if (error != 0 && !mutated(Mutation::error_refused_unseen)) {
      NHA_LOG_INFO("RDMA device {}: queue pair {} does not go into error: {}", info_.device,
                   qp->qp_num, std::strerror(error));
      wait = Duration(0);
    }
  }
  port_.queue_state(*this);
  port_.add_fence(*this);
  port_.env_.timers->cancel(timer_);
  if (wait == Duration(0)) {
    fence_ = Fence::overdue;
  } else {
    port_.env_.timers->arm(timer_, broken_at_ + wait);
  }
}

void VerbsPath::on_timer() {
  if (state_ == PathState::connecting && resolution_) {
    look_at_resolution();
    return;
  }
  if (state_ == PathState::connecting) {
    break_path(
        CompletionStatus::retry_exceeded,
        nccl_ha::fail(
            Errc::timed_out,
            fmt::format("RDMA device {}: the peer's queue pair {} did not answer in {} ms",
                        info_.device, peer_.queue_pair, connect_limit().count() / 1'000'000)));
    return;
  }
  if (fence_ == Fence::flushing) {
    look_at_flush();
  } else if (fence_ == Fence::destroying) {
    look_at_destruction();
  }
}

/// A slow device, or a starved host, takes its time with a long queue.
void VerbsPath::look_at_flush() {
  const uint32_t returned = send_head_ + receive_head_ + flush_head_;
  if (std::exchange(seen_returned_, returned) == returned) {
    fence_ = Fence::overdue;
  } else {
    port_.env_.timers->arm(timer_, port_.env_.clock->now() + port_.options_.flush_wait);
  }
}

/// Everything that the device was given is back.  A receive must be among it: sends that come back
/// say nothing of what the peer writes.
bool VerbsPath::all_returned() const {
  return (receive_returned_ || mutated(Mutation::fence_of_sends_only)) &&
         send_tail_ - send_head_ <= own_sends_ &&
         (receive_tail_ - receive_head_ <= own_receives_ ||
          mutated(Mutation::fence_of_sends_only)) &&
         flush_head_ == flush_tail_;
}

bool VerbsPath::fence_moves() const {
  switch (fence_) {
    case Fence::flushing:
      return all_returned();
    case Fence::overdue:
      return true;
    case Fence::destroying:
      return destruction_result() != Destruction::open;
    case Fence::none:
    case Fence::closed:
    case Fence::failed:
      return false;
  }
  return false;
}

int VerbsPath::destruction_result() const {
  return destruction_->result.load(std::memory_order_acquire);
}

/// The completion queue was just found empty.
void VerbsPath::move_fence() {
  switch (fence_) {
    case Fence::flushing:
      close_fence(port_.statistics_.fences_by_flush, "all work came back");
      return;
    case Fence::overdue:
      if (all_returned()) {  // while nobody looked
        close_fence(port_.statistics_.fences_by_flush, "all work came back");
        return;
      }
      if (mutated(Mutation::queue_pair_not_stopped) || mutated(Mutation::fence_by_time)) {
        close_fence(port_.statistics_.fences_by_destroy, "nothing");
        return;
      }
      destruction_ = port_.device().destroyer().destroy(
          {std::exchange(qp_, nullptr), std::exchange(flush_qp_, nullptr)});
      fence_ = Fence::destroying;
      destruction_deadline_ = port_.env_.clock->now() + port_.options_.destroy_limit;
      look_at_destruction();
      return;
    case Fence::destroying:
      if (const int error = destruction_result();
          error != 0 && !mutated(Mutation::destruction_unasked)) {
        fail_fence(error);
      } else {
        close_fence(port_.statistics_.fences_by_destroy, "the queue pair was destroyed");
      }
      return;
    case Fence::none:
    case Fence::closed:
    case Fence::failed:
      return;
  }
}

void VerbsPath::look_at_destruction() {
  if (destruction_result() != Destruction::open) {
    return;  // the port sees it
  }
  const Instant now = port_.env_.clock->now();
  if (now >= destruction_deadline_) {
    fail_fence(ETIMEDOUT);
  } else {
    port_.env_.timers->arm(timer_, now + destruction_interval);
  }
}

Duration VerbsPath::lost_time() const {
  return port_.env_.lost == nullptr ? Duration(0) : port_.env_.lost->total();
}

void VerbsPath::close_fence(Counter& count, const char* proof) {
  fence_ = Fence::closed;
  ++count;
  port_.env_.timers->cancel(timer_);
  const Duration took = port_.env_.clock->now() - broken_at_;
  NHA_LOG_INFO(
      "RDMA device {}: queue pair {} is fenced after {:.1f} ms, in {:.1f} of which this process "
      "did "
      "not run: {}",
      info_.device, local_.queue_pair, static_cast<double>(took.count()) / 1e6,
      static_cast<double>((lost_time() - lost_before_).count()) / 1e6, proof);
  take_back();
}

/// What is outstanding stays so: nobody knows what may still be written.
void VerbsPath::fail_fence(int error) {
  fence_ = Fence::failed;
  ++port_.statistics_.fences_failed;
  port_.env_.timers->cancel(timer_);
  owner_->on_fence_failed(
      *this,
      nccl_ha::fail(Errc::remote,
                    fmt::format("RDMA device {}: queue pair {} cannot be ended, so the device may "
                                "still write into memory that is to be used again: see the "
                                "kernel's log; it was given up because: {}",
                                info_.device, local_.queue_pair, error_.message()),
                    error));
}

/// The rest, of which no completion tells, in posting order.
void VerbsPath::take_back() {
  while (send_head_ != send_tail_) {
    complete_send(CompletionStatus::flushed);
  }
  Completion completion;
  completion.path = this;
  completion.status = CompletionStatus::flushed;
  while (receive_head_ != receive_tail_) {
    const ReceiveSlot slot = receives_[receive_head_ & receive_mask_];
    ++receive_head_;
    if (!slot.internal) {
      completion.id = slot.id;
      completion.kind = CompletionKind::receive;
      owner_->on_completion(completion);
    }
  }
  while (flush_head_ != flush_tail_) {
    completion.id = flushes_[flush_head_ % flushes_.size()];
    ++flush_head_;
    completion.kind = CompletionKind::flush;
    owner_->on_completion(completion);
  }
}

}  // namespace nccl_ha::fabric::verbs
