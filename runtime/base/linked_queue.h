// A queue whose elements carry their places in it, so that nothing is allocated.  One thread.
#pragma once

#include <cstddef>

namespace nccl_ha {

/// An element's place, which the queue alone writes.
template <class T>
struct QueueLink {
  T* next = nullptr;
  bool listed = false;
};

/// Of elements with a member `link` for this queue.  Whoever destroys one removes it before.
template <class T, QueueLink<T> T::*link>
class LinkedQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  size_t size() const { return size_; }
  /// Not while it is empty.
  T& first() const { return *head_; }
  /// Null: it is empty.
  const T* last() const { return tail_; }
  /// False: it was there.
  bool push(T& one) {
    QueueLink<T>& place = one.*link;
    if (place.listed) {
      return false;
    }
    place = {nullptr, true};
    (tail_ != nullptr ? (tail_->*link).next : head_) = &one;
    tail_ = &one;
    ++size_;
    return true;
  }
  /// Not while it is empty.
  T& pop() {
    T& first = *head_;
    head_ = (first.*link).next;
    if (head_ == nullptr) {
      tail_ = nullptr;
    }
    (first.*link).listed = false;
    --size_;
    return first;
  }
  void remove(const T& one) {
    if ((one.*link).listed) {
      remove_if([&](const T& candidate) { return &candidate == &one; });
    }
  }
  template <class Gone>
  void remove_if(const Gone& gone) {
    T** to = &head_;
    tail_ = nullptr;
    for (T* one = head_; one != nullptr;) {
      T* next = (one->*link).next;
      if (gone(static_cast<const T&>(*one))) {
        (one->*link).listed = false;
        --size_;
      } else {
        *to = one;
        to = &(one->*link).next;
        tail_ = one;
      }
      one = next;
    }
    *to = nullptr;
  }

 private:
  T* head_ = nullptr;
  T* tail_ = nullptr;
  size_t size_ = 0;
};

}  // namespace nccl_ha
