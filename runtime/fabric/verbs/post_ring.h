// What was posted to one queue of a queue pair and has not come back, in posting order.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/fabric/verbs/work_id.h"

namespace nccl_ha::fabric::verbs {

template <class Slot>
class PostRing {
 public:
  /// Positions count up and wrap, in a work request at WorkId's 22 bits.  They begin shortly before
  /// that, so that each path of each test comes past it.
  static constexpr uint32_t first_position = UINT32_MAX - 23;

  /// With room for `least` at least.
  explicit PostRing(size_t least)
      : slots_(std::bit_ceil(least)), mask_(static_cast<uint32_t>(slots_.size()) - 1) {
    NHA_ASSERT(slots_.size() <= WorkId::position_mask,
               "a ring is longer than positions tell apart");
  }

  size_t capacity() const { return slots_.size(); }
  uint32_t size() const { return tail_ - head_; }
  bool empty() const { return head_ == tail_; }
  /// How many have come back; only differences mean something.
  uint32_t head() const { return head_; }
  /// Where the next one goes.
  uint32_t tail() const { return tail_; }
  /// How many are before the one at a work request's position; not less than size(): none is there.
  uint32_t ahead_of(uint32_t position) const { return (position - head_) & WorkId::position_mask; }

  Slot& at(uint32_t position) { return slots_[position & mask_]; }
  const Slot& at(uint32_t position) const { return slots_[position & mask_]; }
  const Slot& front() const {
    NHA_DASSERT(!empty(), "nothing is posted");
    return at(head_);
  }

  Slot& push() {
    NHA_DASSERT(size() < capacity(), "more is posted than the ring has room for");
    return slots_[tail_++ & mask_];
  }
  Slot pop() {
    NHA_DASSERT(!empty(), "nothing is posted");
    return slots_[head_++ & mask_];
  }
  /// The one with so many ahead of it, which go unseen.
  Slot pop_behind(uint32_t ahead) {
    NHA_DASSERT(ahead < size(), "nothing is posted there");
    head_ += ahead;
    return pop();
  }

 private:
  std::vector<Slot> slots_;
  uint32_t mask_;
  uint32_t head_ = first_position;
  uint32_t tail_ = first_position;
};

}  // namespace nccl_ha::fabric::verbs
