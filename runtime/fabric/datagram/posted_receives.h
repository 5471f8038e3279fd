// How many receives of a path are posted; each is met by one immediate of the peer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/check.h"

namespace nccl_ha::fabric {

class PostedReceives {
 public:
  explicit PostedReceives(uint32_t max) : max_(max) {}

  size_t capacity() const { return max_; }
  bool empty() const { return count_ == 0; }
  bool full() const { return count_ >= max_; }
  void push() {
    NHA_DASSERT(!full(), "more receives than the path takes");
    ++count_;
  }
  void pop() {
    NHA_DASSERT(!empty(), "no receive is posted");
    --count_;
  }

  bool sound() const { return count_ <= max_; }

 private:
  uint32_t max_;
  uint32_t count_ = 0;
};

}  // namespace nccl_ha::fabric
