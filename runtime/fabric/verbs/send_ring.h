// Work that was posted to the send queue of a queue pair and has not completed, in posting order;
// the newest of it waits for the doorbell.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/verbs/post_ring.h"
#include "runtime/fabric/verbs/work_id.h"

namespace nccl_ha::fabric::verbs {

class SendRing {
 public:
  /// What the path posts for itself.
  enum class Internal : uint8_t { no, small_probe, full_probe, marker };
  struct Slot {
    uint64_t id = 0;
    uint32_t bytes = 0;
    bool unsignaled = false;
    Internal internal = Internal::no;
  };
  /// The path's own posts, beyond `writes_max`, that the queue pair has room for.
  static constexpr uint32_t internal_max = 4;

  SendRing(const WorkId& ids, uint32_t writes_max);

  bool empty() const { return ring_.empty(); }
  bool full() const { return ring_.size() >= writes_max_; }
  uint32_t head() const { return ring_.head(); }
  const Slot& front() const { return ring_.front(); }
  const Slot& at(uint32_t position) const { return ring_.at(position); }
  /// Posts that wait for the doorbell.
  uint32_t waiting() const { return waiting_; }
  /// Posted and not completed.
  uint64_t open_bytes() const { return open_bytes_; }
  /// Grows with completions and with posts that end idleness.
  uint64_t progress() const { return progress_; }
  /// The newest posts ask for no completion.
  bool ends_unsignaled() const { return unsignaled_ != 0; }

  /// The next work request, all but its opcode and what goes with that filled in.  `inline_max`: up
  /// to so many bytes are copied at the doorbell.
  [[gnu::always_inline]] ibv_send_wr& push(const Slot& slot, std::span<const Gather> gathers,
                                           uint32_t inline_max) {
    auto& sges = sges_[waiting_];
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
    ibv_send_wr& request = requests_[waiting_++];
    request.wr_id = ids_.at(ring_.tail());
    request.num_sge = static_cast<int>(gathers.size());
    request.send_flags = bytes <= inline_max && bytes != 0 ? unsigned{IBV_SEND_INLINE} : 0U;
    progress_ += ring_.empty() ? 1 : 0;
    open_bytes_ += bytes;
    Slot& kept = ring_.push();
    kept = slot;
    kept.bytes = bytes;
    return request;
  }

  /// Gives the device what waits, with one doorbell.  An errno value where it did not take all of
  /// it: then it never gets the rest, and the queue pair has to end.
  [[gnu::always_inline]] int post(ibv_qp* pair) {
    NHA_DASSERT(waiting_ != 0 && never_posted_ == 0, "a doorbell for nothing, or after the end");
    const uint32_t count = std::exchange(waiting_, 0);
    choose_signals(count);
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(pair, requests_.data(), &bad);
    if (error != 0) [[unlikely]] {
      never_posted_ = count - (bad == nullptr ? 0 : static_cast<uint32_t>(bad - requests_.data()));
    }
    return error;
  }

  /// As PostRing::ahead_of().
  uint32_t ahead_of(uint32_t position) const { return ring_.ahead_of(position); }
  bool holds(uint32_t ahead) const { return ahead < ring_.size(); }
  /// The oldest one has come back.
  [[gnu::always_inline]] Slot pop() {
    const Slot slot = ring_.pop();
    NHA_DASSERT(open_bytes_ >= slot.bytes, "more bytes came back than were posted");
    open_bytes_ -= slot.bytes;
    ++progress_;
    return slot;
  }

  /// The queue pair is broken: the device gets nothing any more.
  void stop() { never_posted_ += std::exchange(waiting_, 0); }
  /// Everything that the device was given has come back.
  bool all_returned() const { return ring_.size() <= never_posted_; }

 private:
  /// Links what waits and says which of it completes.  One completion answers for all before it, so
  /// only the last that somebody waits for asks for one, large ones, and now and then one so that
  /// the ring keeps moving.
  [[gnu::always_inline]] void choose_signals(uint32_t count) {
    if (count != 1) [[unlikely]] {
      choose_signals_of_many(count);
      return;
    }
    ibv_send_wr& request = requests_[0];
    request.next = nullptr;
    if (!ring_.at(ring_.tail() - 1).unsignaled || ++unsignaled_ >= unsignaled_max()) {
      request.send_flags |= IBV_SEND_SIGNALED;
      unsignaled_ = 0;
    }
  }
  void choose_signals_of_many(uint32_t count);
  uint32_t unsignaled_max() const { return writes_max_ / 4 + 1; }

  const WorkIds ids_;
  const uint32_t writes_max_;
  PostRing<Slot> ring_;
  uint32_t waiting_ = 0;
  uint32_t never_posted_ = 0;  ///< the last ones, which the broken queue pair was never given
  uint32_t unsignaled_ = 0;    ///< given to the device since the last one that completes
  uint64_t open_bytes_ = 0;
  uint64_t progress_ = 0;
  std::vector<ibv_send_wr> requests_;
  std::vector<std::array<ibv_sge, gathers_max>> sges_;
};

}  // namespace nccl_ha::fabric::verbs
