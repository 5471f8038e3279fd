// Acknowledgements that the paths of a port owe: delayed ones in the order of their deadlines,
// urgent ones apart.  One thread.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/base/clock.h"

namespace nccl_ha::fabric {

class DatagramPath;

/// A path's place in the list, which the list alone writes.
struct AckLink {
  explicit AckLink(DatagramPath& its_path) : path(its_path) {}
  DatagramPath& path;
  AckLink* next = nullptr;
  AckLink* previous = nullptr;
  Instant deadline{};
  bool delayed = false;
  bool urgent = false;
};

class AckList {
 public:
  /// The first delayed one; null: there is none.
  AckLink* first() const { return head_; }
  bool due(Instant now) const { return head_ != nullptr && head_->deadline <= now; }
  /// Those that are not `urgent` any more were settled meanwhile.
  const std::vector<AckLink*>& urgent() const { return urgent_; }
  void clear_urgent() { urgent_.clear(); }
  void urge(AckLink& one) {
    if (!one.urgent) {
      urgent_.push_back(&one);  // may throw
      one.urgent = true;
    }
  }
  void delay(AckLink& one, Instant deadline) {
    if (one.delayed) {
      return;
    }
    one.delayed = true;
    one.deadline = deadline;
    // Most have the same delay, and belong at the end.
    one.previous = tail_;
    while (one.previous != nullptr && one.previous->deadline > deadline) {
      one.previous = one.previous->previous;
    }
    AckLink*& after = one.previous != nullptr ? one.previous->next : head_;
    one.next = after;
    after = &one;
    (one.next != nullptr ? one.next->previous : tail_) = &one;
  }
  /// Nothing is owed any more.
  void settle(AckLink& one) {
    one.urgent = false;
    if (!one.delayed) {
      return;
    }
    one.delayed = false;
    (one.previous != nullptr ? one.previous->next : head_) = one.next;
    (one.next != nullptr ? one.next->previous : tail_) = one.previous;
  }
  /// The path goes.
  void forget(AckLink& one) {
    std::erase(urgent_, &one);
    settle(one);
  }

 private:
  std::vector<AckLink*> urgent_;
  AckLink* head_ = nullptr;
  AckLink* tail_ = nullptr;
};

}  // namespace nccl_ha::fabric
