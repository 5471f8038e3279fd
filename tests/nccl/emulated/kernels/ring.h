// A ring's receive connection and send connection, and the buffers of the user between them.
#pragma once

#include <atomic>

#include "tests/nccl/emulated/kernels/block.h"
#include "tests/nccl/emulated/kernels/mistake.h"
#include "tests/nccl/emulated/kernels/reduction.h"

namespace nccl_ha::emulated {

/// One step of a collective on one rank.  All ranks' steps must be NCCL's own, in its order: peers'
/// chunks meet only by that.
template <class T>
struct Step {
  bool receive = false;
  bool send = false;
  const T* mine = nullptr;  ///< what of the user is sent or added
  bool from_input = true;   ///< `mine` is input, not a result already
  T* result = nullptr;      ///< where the user wants the result
  ssize_t count = 0;        ///< negative counts are empty steps
  bool last = false;        ///< nobody adds anything to the result
};

template <class T>
class Ring {
 public:
  Ring(const Block& block, int protocol, int slices, int steps_per_slice, Reduction<T> reduction)
      : block_(block),
        protocol_(protocol),
        slices_(protocol == NCCL_PROTO_LL ? 1 : slices),
        steps_(protocol == NCCL_PROTO_LL ? 1 : steps_per_slice),
        reduction_(reduction),
        recv_(block.from(block.channel->ring.prev, 0)),
        send_(block.to(block.channel->ring.next, 0)) {
    const auto chunk = static_cast<uint64_t>(slices_ * steps_);
    recv_step_ = (recv_->step + chunk - 1) / chunk * chunk;
    send_step_ = (send_->step + chunk - 1) / chunk * chunk;
    if (protocol_ == NCCL_PROTO_SIMPLE) {
      store(recv_->head, recv_step_);
    }
  }
  ~Ring() {
    recv_->step = recv_step_;
    send_->step = send_step_;
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void run(const Step<T>& step) {
    const auto count = static_cast<size_t>(std::max<ssize_t>(step.count, 0));
    if (protocol_ == NCCL_PROTO_LL) {
      low_latency(step, count);
    } else {
      simple(step, count);
    }
  }

 private:
  void simple(const Step<T>& step, size_t count) {
    const auto bytes = static_cast<size_t>(block_.comm->buffSizes[NCCL_PROTO_SIMPLE]);
    const size_t full = bytes / NCCL_STEPS / sizeof(T) * static_cast<size_t>(steps_);
    const size_t parts = 16 * static_cast<size_t>(slices_);
    size_t slice = std::max((count + parts - 1) / parts * 16, full / 32);
    size_t offset = 0;
    for (int i = 0; i < slices_; ++i) {
      slice = std::min(slice, count - offset);
      if (step.receive) {
        block_.wait_until([this] { return may_receive(recv_, recv_step_, steps_); });
      }
      if (step.send) {
        block_.wait_until([this] { return may_send(send_, send_step_, steps_); });
        const size_t sent = mistaken(Mistake::size) && slice > 0 ? slice - 1 : slice;
        set_size(send_, send_step_, sent * sizeof(T));
        if (mistaken(Mistake::early_tail)) {
          store(send_->tail, send_step_ + static_cast<uint64_t>(steps_));
          give_way(std::chrono::milliseconds(5));
        }
      }
      if (slice > 0) {
        const char* from = step.receive ? simple_slot(recv_, recv_step_) : nullptr;
        char* to = step.send ? simple_slot(send_, send_step_) : nullptr;
        combine(reduction_, step.from_input, step.mine != nullptr ? step.mine + offset : nullptr,
                reinterpret_cast<const T*>(from), step.last, reinterpret_cast<T*>(to),
                step.result != nullptr ? step.result + offset : nullptr, slice);
        if (to != nullptr && mistaken(Mistake::element)) {
          to[slice * sizeof(T) - 1] = static_cast<char>(to[slice * sizeof(T) - 1] ^ 0x40);
        }
      }
      if (step.receive) {
        recv_step_ += static_cast<uint64_t>(steps_);
        store(recv_->head, recv_step_);
      }
      if (step.send) {
        send_step_ += static_cast<uint64_t>(steps_);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        store(send_->tail, send_step_);
      }
      offset += slice;
    }
  }

  void low_latency(const Step<T>& step, size_t count) {
    constexpr size_t per_line = sizeof(uint64_t) / sizeof(T);
    const size_t lines = (count + per_line - 1) / per_line;
    const Lines in = step.receive ? ll_slot(block_, recv_, recv_step_) : Lines{};
    const Lines out = step.send ? ll_slot(block_, send_, send_step_) : Lines{};
    const bool clean = ll_must_clean(send_step_);
    if (step.send) {
      block_.wait_until([this] { return may_send(send_, send_step_, 1); });
      set_size(send_, send_step_, (clean ? out.count : lines) * sizeof(ncclLLFifoLine));
    }
    for (size_t i = 0; i < lines; ++i) {
      const size_t first = i * per_line;
      T theirs[per_line] = {};
      T result[per_line] = {};
      if (step.receive) {
        uint64_t data = 0;
        block_.wait_until(
            [&] { return read_line(in.first + i, NCCL_LL_FLAG(recv_step_ + 1), &data); });
        std::memcpy(static_cast<void*>(theirs), &data, sizeof data);
      }
      combine(reduction_, step.from_input, step.mine != nullptr ? step.mine + first : nullptr,
              step.receive ? theirs : nullptr, step.last, result,
              step.result != nullptr ? step.result + first : nullptr,
              std::min(per_line, count - first));
      if (step.send) {
        uint64_t data = 0;
        std::memcpy(&data, result, sizeof data);
        const uint64_t named = send_step_ + (mistaken(Mistake::flag) ? 2 : 1);
        write_line(out.first + i, data, NCCL_LL_FLAG(named));
      }
    }
    if (step.receive) {
      store(recv_->head, ++recv_step_);
    }
    if (step.send) {
      for (size_t i = lines; clean && i < out.count; ++i) {
        write_line(out.first + i, 0, NCCL_LL_FLAG(send_step_ + 1));
      }
      ++send_step_;
    }
  }

  const Block& block_;
  const int protocol_;
  const int slices_;
  const int steps_;
  const Reduction<T> reduction_;
  ncclConnInfo* const recv_;
  ncclConnInfo* const send_;
  uint64_t recv_step_ = 0;
  uint64_t send_step_ = 0;
};

}  // namespace nccl_ha::emulated
