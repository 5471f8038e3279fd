// The work requests of a path in the order of their posts: those whose segments wait for
// acknowledgements, the one that gives segments now, those that wait for their turn.
#pragma once

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/datagram/work_request.h"

namespace nccl_ha::fabric {

class RequestRing {
 public:
  explicit RequestRing(uint32_t max)
      : max_(max),
        requests_(std::bit_ceil(max)),
        mask_(static_cast<uint32_t>(requests_.size()) - 1) {}

  size_t capacity() const { return requests_.size(); }
  bool full() const { return tail_ - head_ >= max_; }
  /// One of them has something that was not given to a segment yet.
  bool unsent() const { return next_ != tail_; }
  void push(WorkRequest&& request) {
    NHA_DASSERT(!full(), "more requests than the path takes");
    requests_[tail_ & mask_] = std::move(request);
    ++tail_;
  }

  /// The one that gives segments; only while there is one.
  WorkRequest& current() { return requests_[next_ & mask_]; }
  uint32_t current_number() const { return next_; }
  const WorkRequest& numbered(uint32_t number) const { return requests_[number & mask_]; }
  /// All of the current one has been sent, in segments before `end_sequence`.
  void finish_current(uint32_t end_sequence) {
    NHA_DASSERT(unsent() && current().sent == current().length, "the request is not sent");
    current().end_sequence = end_sequence;
    ++next_;
  }

  /// Everything before `acknowledged` has arrived: takes out whatever is complete, and calls
  /// done(WorkRequest&) for those whose success is reported.
  template <class Done>
  void complete(uint32_t acknowledged, Done&& done) {
    while (head_ != next_) {
      const WorkRequest& request = requests_[head_ & mask_];
      if (sequence_distance(acknowledged, request.end_sequence) < 0) {
        break;
      }
      ++head_;
      if (!request.unsignaled) {
        done(request);
      }
    }
  }
  /// Takes out all of them, and calls flushed(WorkRequest&) for each.
  template <class Flushed>
  void flush(Flushed&& flushed) {
    for (; head_ != tail_; ++head_) {
      flushed(std::as_const(requests_[head_ & mask_]));
    }
    next_ = tail_;
  }

  /// head <= next <= tail, and no more than posted.
  bool sound() const { return next_ - head_ <= tail_ - head_ && tail_ - head_ <= max_; }

 private:
  uint32_t max_;
  std::vector<WorkRequest> requests_;
  uint32_t mask_;
  uint32_t head_ = 0;  ///< oldest incomplete
  uint32_t next_ = 0;  ///< gives segments
  uint32_t tail_ = 0;
};

}  // namespace nccl_ha::fabric
