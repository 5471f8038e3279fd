// What is to happen, by time; of equal times, in the order in which it was added.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"

namespace nccl_ha::sim {

class EventQueue {
 public:
  void add(Instant due, std::function<void()> what) {
    heap_.push_back({due, next_++, std::move(what)});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  bool empty() const { return heap_.empty(); }
  /// Of the first one; there must be one, as for take().
  Instant due() const { return heap_.front().due; }
  std::function<void()> take() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    auto what = std::move(heap_.back().what);
    heap_.pop_back();
    return what;
  }

 private:
  struct Event {
    Instant due;
    uint64_t number = 0;
    std::function<void()> what;
  };
  static bool later(const Event& one, const Event& other) {
    return std::pair(one.due, one.number) > std::pair(other.due, other.number);
  }
  std::vector<Event> heap_;
  uint64_t next_ = 0;
};

}  // namespace nccl_ha::sim
