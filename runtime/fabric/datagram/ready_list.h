// Paths of a port that have something to send and may, in turn.  A path carries its own place in
// the list, so that nothing is allocated.  One thread.
#pragma once

namespace nccl_ha::fabric {

class DatagramPath;

struct ReadyLink {
  explicit ReadyLink(DatagramPath& its_path) : path(its_path) {}
  DatagramPath& path;
  ReadyLink* next = nullptr;
  bool listed = false;
};

class ReadyList {
 public:
  bool empty() const { return head_ == nullptr; }
  const ReadyLink* last() const { return tail_; }
  /// False: it was there.
  bool push(ReadyLink& one) {
    if (one.listed) {
      return false;
    }
    one.listed = true;
    one.next = nullptr;
    (tail_ != nullptr ? tail_->next : head_) = &one;
    tail_ = &one;
    return true;
  }
  ReadyLink& pop() {
    ReadyLink& first = *head_;
    head_ = first.next;
    if (head_ == nullptr) {
      tail_ = nullptr;
    }
    first.listed = false;
    return first;
  }
  void remove(ReadyLink& one) {
    if (!one.listed) {
      return;
    }
    ReadyLink** link = &head_;
    ReadyLink* previous = nullptr;
    while (*link != &one) {
      previous = *link;
      link = &(*link)->next;
    }
    *link = one.next;
    tail_ = tail_ == &one ? previous : tail_;
    one.listed = false;
  }

 private:
  ReadyLink* head_ = nullptr;
  ReadyLink* tail_ = nullptr;
};

}  // namespace nccl_ha::fabric
