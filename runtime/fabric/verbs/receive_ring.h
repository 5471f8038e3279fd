// Receives that were posted and not used, in posting order; the newest of them may be held back
// from the device.  They have no buffers: what meets them is in its place.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/fabric/completion_status.h"
#include "runtime/fabric/verbs/post_ring.h"
#include "runtime/fabric/verbs/work_id.h"

namespace nccl_ha::fabric::verbs {

class ReceiveRing {
 public:
  struct Slot {
    bool internal = false;  ///< for a probe of the peer's
  };
  /// The peer sends two.
  static constexpr uint32_t probes = 2;

  /// Of `receives_max` the peer never uses `spare`: so many may be held back.
  ReceiveRing(const WorkId& ids, uint32_t receives_max, uint32_t spare)
      : ids_(ids), receives_max_(receives_max), spare_(spare), ring_(receives_max + 8) {}

  bool empty() const { return ring_.empty(); }
  bool full() const { return ring_.size() >= receives_max_ + probes; }
  uint32_t head() const { return ring_.head(); }
  /// The peer may have been promised some of those that are held back.
  bool holds_too_many() const { return held_ > spare_; }

  /// One of which the device is told later, of several together.
  void hold(bool internal = false) {
    NHA_DASSERT(never_posted_ == 0, "a receive for a queue pair that refused some");
    ring_.push() = {internal};
    ++held_;
  }
  /// Gives the device those that are held back.  An errno value where it did not take all of them:
  /// then it never gets the rest, and the queue pair has to end.
  int post_held(ibv_qp* pair) { return held_ == 0 ? 0 : post_all_held(pair); }
  /// One that goes to the device at once; none is held back.  False: it does not take it.
  bool post(ibv_qp* pair);

  /// As PostRing::ahead_of().
  uint32_t ahead_of(uint32_t position) const { return ring_.ahead_of(position); }
  bool holds(uint32_t ahead) const { return ahead < ring_.size(); }
  Slot pop() { return ring_.pop(); }
  Slot pop_behind(uint32_t ahead) { return ring_.pop_behind(ahead); }

  /// The broken queue pair gave one back unused.
  void note_returned() { returned_ = true; }
  /// The front one has come back unused.  True: it is the last, and stays until the fence is
  /// closed; whoever has all of its receives back takes that for the proof.
  bool keep_last(CompletionStatus status) {
    if (ring_.size() != 1) {
      return false;
    }
    kept_ = status;
    return true;
  }
  /// What became of those that are there when the fence closes.
  CompletionStatus left() const { return kept_.value_or(CompletionStatus::flushed); }
  /// The queue pair is broken: the device gets nothing any more.
  void stop() { never_posted_ += std::exchange(held_, 0); }
  /// Everything that the device was given has come back, and one at least unused: sends that come
  /// back say nothing of what the peer writes.
  bool all_returned() const { return returned_ && ring_.size() <= never_posted_ + (kept_ ? 1 : 0); }

 private:
  int post_all_held(ibv_qp* pair);

  const WorkIds ids_;
  const uint32_t receives_max_;
  const uint32_t spare_;
  PostRing<Slot> ring_;
  uint32_t held_ = 0;          ///< the last ones, which the device does not have yet
  uint32_t never_posted_ = 0;  ///< the last ones, which the broken queue pair was never given
  bool returned_ = false;
  std::optional<CompletionStatus> kept_;  ///< of the last one, where it has come back
};

}  // namespace nccl_ha::fabric::verbs
