// The receives of a path in the order of their posts; each is met by one message of the peer.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::fabric {

class PostedReceives {
 public:
  explicit PostedReceives(uint32_t max)
      : max_(max),
        receives_(std::bit_ceil(std::max(max, 1U))),
        mask_(static_cast<uint32_t>(receives_.size()) - 1) {}

  size_t capacity() const { return receives_.size(); }
  bool empty() const { return head_ == tail_; }
  bool full() const { return tail_ - head_ >= max_; }
  void push(const ReceivePost& receive) {
    NHA_DASSERT(!full(), "more receives than the path takes");
    receives_[tail_++ & mask_] = receive;
  }
  const ReceivePost& front() const {
    NHA_DASSERT(!empty(), "no receive is posted");
    return receives_[head_ & mask_];
  }
  void pop() {
    NHA_DASSERT(!empty(), "no receive is posted");
    ++head_;
  }

  bool sound() const { return tail_ - head_ <= max_; }

 private:
  uint32_t max_;
  std::vector<ReceivePost> receives_;
  uint32_t mask_;
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
};

}  // namespace nccl_ha::fabric
