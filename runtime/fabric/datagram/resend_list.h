// Segments of a port to be sent again, in the order in which they were found lost.  Those that were
// acknowledged meanwhile are still in it.  One thread.
#pragma once

#include "runtime/fabric/datagram/segment.h"

namespace nccl_ha::fabric {

class ResendList {
 public:
  bool empty() const { return head_ == nullptr; }
  /// False: it was there.
  bool push(Segment& segment) {
    if (segment.listed) {
      return false;
    }
    segment.listed = true;
    segment.resend_next = nullptr;
    (tail_ != nullptr ? tail_->resend_next : head_) = &segment;
    tail_ = &segment;
    return true;
  }
  Segment& first() const { return *head_; }
  void pop() {
    Segment& gone = *head_;
    head_ = gone.resend_next;
    if (head_ == nullptr) {
      tail_ = nullptr;
    }
    gone.listed = false;
  }
  /// The first becomes the last.
  void postpone() {
    Segment& first = *head_;
    if (&first == tail_) {
      return;
    }
    head_ = first.resend_next;
    first.resend_next = nullptr;
    tail_->resend_next = &first;
    tail_ = &first;
  }
  /// All segments of a path that is going.
  void forget(const DatagramPath& path) {
    Segment* kept = nullptr;
    Segment** link = &kept;
    tail_ = nullptr;
    for (Segment* segment = head_; segment != nullptr;) {
      Segment* next = segment->resend_next;
      if (segment->path != &path) {
        *link = segment;
        link = &segment->resend_next;
        tail_ = segment;
      }
      segment = next;
    }
    *link = nullptr;
    head_ = kept;
  }

 private:
  Segment* head_ = nullptr;
  Segment* tail_ = nullptr;
};

}  // namespace nccl_ha::fabric
