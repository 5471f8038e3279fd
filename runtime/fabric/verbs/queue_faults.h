// What a device's events say of single queue pairs and completion queues: from whoever reads the
// events to the ports on other threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace nccl_ha::fabric::verbs {

/// Any thread.  An ibv_qp or ibv_cq is named by its address alone, so that it may be gone.
class QueueFaults {
 public:
  void add(const void* object) {
    const std::lock_guard lock(mutex_);
    last_.push_back(object);
    if (last_.size() > kept_max) {
      last_.pop_front();  // a port that has not looked finds out by silence
    }
    count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  uint64_t count() const { return count_.load(std::memory_order_acquire); }
  /// Those after the first `*seen`, which then are all.
  std::vector<const void*> since(uint64_t* seen) const {
    const std::lock_guard lock(mutex_);
    const uint64_t all = count_.load(std::memory_order_relaxed);
    const size_t fresh = std::min<size_t>(all - *seen, last_.size());
    *seen = all;
    return {last_.end() - static_cast<ptrdiff_t>(fresh), last_.end()};
  }

 private:
  static constexpr size_t kept_max = 1024;
  mutable std::mutex mutex_;
  std::deque<const void*> last_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace nccl_ha::fabric::verbs
