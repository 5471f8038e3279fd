// The receiving half of a simulated queue pair: receives, and the order of what arrives.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "runtime/base/clock.h"

namespace nccl_ha::sim {

struct RdmaReceive {
  uint64_t id = 0;
  ibv_sge buffer{};
};

class RdmaResponder {
 public:
  enum class Order : uint8_t { expected, repeated, early };

  void set_receives_max(size_t most) { receives_max_ = most; }
  /// To RTR.
  void start(uint64_t number) { expected_ = number; }

  bool full() const { return receives_.size() >= receives_max_; }
  bool empty() const { return receives_.empty(); }
  void post(const RdmaReceive& receive) { receives_.push_back(receive); }
  const RdmaReceive& front() const { return receives_.front(); }
  RdmaReceive take() {
    const RdmaReceive first = receives_.front();
    receives_.pop_front();
    return first;
  }
  /// The queue pair is in error.
  std::deque<RdmaReceive> take_all() { return std::exchange(receives_, {}); }

  uint64_t expected() const { return expected_; }
  Order order_of(uint64_t number) const {
    return number == expected_  ? Order::expected
           : number < expected_ ? Order::repeated
                                : Order::early;
  }
  /// What was expected has been taken.
  void advance() {
    ++expected_;
    complained_ = false;
  }
  /// About the gap that there is.  False: that was done.
  bool complain() { return !std::exchange(complained_, true); }

  /// When all that it wrote will be in memory.
  Instant landed() const { return landed_; }
  void set_landed(Instant when) { landed_ = when; }

 private:
  std::deque<RdmaReceive> receives_;
  size_t receives_max_ = 0;
  uint64_t expected_ = 0;
  bool complained_ = false;
  Instant landed_{};
};

}  // namespace nccl_ha::sim
