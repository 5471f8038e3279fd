// What the paths of a port have to tell their owners, in order.  One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::fabric {

class DatagramPath;

class CompletionQueue {
 public:
  /// A path that can have so many completions at once comes, so that neither push() nor its states
  /// need memory. Throws std::bad_alloc, and the queue is as before.
  void reserve(size_t count) {
    if (states_.capacity() < (paths_ + 1) * states_per_path) {
      states_.reserve((paths_ + 1) * states_per_path * 2);
    }
    if (ring_.size() >= need_ + count) {
      ++paths_;
      need_ += count;
      return;
    }
    std::vector<Completion> larger(std::max<size_t>((need_ + count) * 2, 1024));
    ++paths_;
    need_ += count;
    for (size_t i = 0; i < count_; ++i) {
      larger[i] = ring_[(head_ + i) % ring_.size()];
    }
    ring_ = std::move(larger);
    head_ = 0;
  }
  /// Such a path goes: nothing of it is told any more.
  void forget(const DatagramPath& path, const Path* as_path, size_t count) {
    --paths_;
    need_ -= count;
    for (size_t i = 0; i < count_; ++i) {
      Completion& completion = ring_[(head_ + i) % ring_.size()];
      if (completion.path == as_path) {
        completion.path = nullptr;
      }
    }
    std::replace(states_.begin(), states_.end(), const_cast<DatagramPath*>(&path),
                 static_cast<DatagramPath*>(nullptr));
  }

  bool empty() const { return count_ == 0 && states_.empty(); }
  size_t count() const { return count_; }
  void push(const Completion& completion) {
    NHA_ASSERT(count_ < ring_.size(), "more completions than posted work");
    ring_[(head_ + count_) % ring_.size()] = completion;
    ++count_;
  }
  /// Its path is null when it has gone meanwhile.
  Completion pop() {
    const Completion completion = ring_[head_];
    head_ = (head_ + 1) % ring_.size();
    --count_;
    return completion;
  }

  /// Paths whose state has changed; null: it has gone meanwhile.
  std::vector<DatagramPath*>& states() { return states_; }

 private:
  static constexpr size_t states_per_path = 2;  ///< ready, then error

  std::vector<Completion> ring_;
  size_t head_ = 0;
  size_t count_ = 0;
  size_t need_ = 0;
  size_t paths_ = 0;
  std::vector<DatagramPath*> states_;
};

}  // namespace nccl_ha::fabric
