#include <algorithm>
#include <utility>

#include "tests/rig/nic/objects.h"
#include "tests/rig/nic/pair.h"

namespace nccl_ha::emulated {

Queue::Pushed Queue::push(const Entry& entry) {
  const std::lock_guard lock(lock_);
  if (overran_) {
    return Pushed::lost;
  }
  if (ready_.size() >= static_cast<size_t>(cqe)) {
    overran_ = true;
    return Pushed::overran;
  }
  ready_.push_back(entry);
  count_.store(ready_.size(), std::memory_order_release);
  if (std::exchange(armed_, false) && channel != nullptr) {
    static_cast<Channel*>(channel)->events.push(this);
  }
  return Pushed::ok;
}

int Queue::poll(int room, ibv_wc* out) {
  if (count_.load(std::memory_order_acquire) == 0) {
    return 0;
  }
  const std::lock_guard lock(lock_);
  int count = 0;
  for (; count < room && !ready_.empty(); ready_.pop_front()) {
    const Entry& entry = ready_.front();
    out[count++] = entry.wc;
    entry.pair->on_polled(entry);
  }
  count_.store(ready_.size(), std::memory_order_release);
  return count;
}

void Queue::arm() {
  const std::lock_guard lock(lock_);
  armed_ = true;
}

void Queue::end() {
  const std::lock_guard lock(lock_);
  overran_ = true;
}

void Queue::drop(const Pair* pair) {
  const std::lock_guard lock(lock_);
  std::erase_if(ready_, [&](const Entry& entry) { return entry.pair == pair; });
  count_.store(ready_.size(), std::memory_order_release);
}

}  // namespace nccl_ha::emulated
