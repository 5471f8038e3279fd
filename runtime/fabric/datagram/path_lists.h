// The lists in which a port keeps its paths and their segments.  A path and a segment carry their
// own places in them, so that nothing is allocated.  One thread.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/fabric/datagram/send_queue.h"

namespace nccl_ha::fabric {

/// A path's places in the lists of its port.
struct PathLinks {
  explicit PathLinks(DatagramPath& its_path) : path(its_path) {}
  DatagramPath& path;
  PathLinks* ready_next = nullptr;
  PathLinks* ack_next = nullptr;
  PathLinks* ack_previous = nullptr;
  Instant ack_deadline{};
  bool ready_listed = false;
  bool ack_listed = false;
  bool ack_urgent = false;
};

/// Paths that have something to send and may, in turn.
class ReadyList {
 public:
  bool empty() const { return head_ == nullptr; }
  const PathLinks* last() const { return tail_; }
  /// False: it was there.
  bool push(PathLinks& one) {
    if (one.ready_listed) {
      return false;
    }
    one.ready_listed = true;
    one.ready_next = nullptr;
    (tail_ != nullptr ? tail_->ready_next : head_) = &one;
    tail_ = &one;
    return true;
  }
  PathLinks& pop() {
    PathLinks& first = *head_;
    head_ = first.ready_next;
    if (head_ == nullptr) {
      tail_ = nullptr;
    }
    first.ready_listed = false;
    return first;
  }
  void remove(PathLinks& one) {
    if (!one.ready_listed) {
      return;
    }
    PathLinks** link = &head_;
    PathLinks* previous = nullptr;
    while (*link != &one) {
      previous = *link;
      link = &(*link)->ready_next;
    }
    *link = one.ready_next;
    tail_ = tail_ == &one ? previous : tail_;
    one.ready_listed = false;
  }

 private:
  PathLinks* head_ = nullptr;
  PathLinks* tail_ = nullptr;
};

/// Acknowledgements that are owed: delayed ones in the order of their deadlines, urgent ones apart.
class AckList {
 public:
  /// The first delayed one; null: there is none.
  PathLinks* first() const { return head_; }
  const std::vector<PathLinks*>& urgent() const { return urgent_; }
  void clear_urgent() { urgent_.clear(); }
  void urge(PathLinks& one) {
    if (!one.ack_urgent) {
      one.ack_urgent = true;
      urgent_.push_back(&one);
    }
  }
  void delay(PathLinks& one, Instant deadline) {
    if (one.ack_listed) {
      return;
    }
    one.ack_listed = true;
    one.ack_deadline = deadline;
    one.ack_next = nullptr;
    one.ack_previous = tail_;
    (tail_ != nullptr ? tail_->ack_next : head_) = &one;
    tail_ = &one;
  }
  /// It is not delayed any more.
  void remove(PathLinks& one) {
    if (!one.ack_listed) {
      return;
    }
    one.ack_listed = false;
    (one.ack_previous != nullptr ? one.ack_previous->ack_next : head_) = one.ack_next;
    (one.ack_next != nullptr ? one.ack_next->ack_previous : tail_) = one.ack_previous;
  }
  /// The path is going.
  void forget(PathLinks& one) {
    std::erase(urgent_, &one);
    remove(one);
  }

 private:
  std::vector<PathLinks*> urgent_;
  PathLinks* head_ = nullptr;
  PathLinks* tail_ = nullptr;
};

/// Segments to be sent again, in the order in which they were found lost.  Those that were
/// acknowledged meanwhile are still in it.
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
