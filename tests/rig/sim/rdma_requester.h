// The sending half of a simulated reliable connection: work requests, the numbers of their packets,
// and what is sent again (IBTA 9.7: go-back-N).
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"

namespace nccl_ha::sim {

/// One work request.
struct RdmaWork {
  uint64_t id = 0;
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  bool signaled = false;
  std::vector<ibv_sge> gathers;
  std::vector<std::byte> copy;  ///< of what was posted inline
  bool inlined = false;
  uint64_t remote = 0;
  uint32_t key = 0;
  uint32_t immediate = 0;
  uint32_t length = 0;
  uint64_t first = 0;    ///< packet number
  uint64_t packets = 1;  ///< also of nothing
};

class RdmaRequester {
 public:
  /// To RTS.
  void start(uint64_t number, Duration timeout, unsigned retries_max) {
    next_ = to_send_ = confirmed_ = highest_ = number;
    timeout_ = timeout;
    retries_max_ = retries_max;
  }

  size_t open() const { return work_.size(); }
  /// Its packets get the next numbers.
  void post(RdmaWork&& work) {
    work.first = next_;
    next_ += work.packets;
    work_.push_back(std::move(work));
  }
  /// The queue pair is in error.
  std::deque<RdmaWork> take_all() { return std::exchange(work_, {}); }

  // --- packets
  bool may_send(Instant now) const {
    return to_send_ < next_ && to_send_ < confirmed_ + window && now >= silent_until_;
  }
  /// The number of the next packet to leave, and what it belongs to.
  uint64_t to_send() const { return to_send_; }
  const RdmaWork& sending() const {
    return *std::partition_point(work_.begin(), work_.end(), [&](const RdmaWork& one) {
      return one.first + one.packets <= to_send_;
    });
  }
  /// It leaves.  True: not for the first time.
  bool sent(Instant now) {
    if (idle()) {
      unanswered_since_ = now;
    }
    const bool again = to_send_ < highest_;
    highest_ = std::max(highest_, ++to_send_);
    NHA_DASSERT(to_send_ <= next_, "a packet of no work request was sent");
    return again;
  }

  // --- answers
  /// All below have been acknowledged.
  void confirm(uint64_t below, Instant now) {
    if (below <= confirmed_ || below > next_) {
      return;
    }
    confirmed_ = below;
    to_send_ = std::max(to_send_, below);
    retries_ = 0;
    due_ = now + timeout_;
    unanswered_since_ = now;
  }
  /// The oldest work request, once all of it is acknowledged.
  std::optional<RdmaWork> take_done() {
    if (work_.empty() || work_.front().first + work_.front().packets > confirmed_) {
      return std::nullopt;
    }
    std::optional<RdmaWork> done(std::move(work_.front()));
    work_.pop_front();
    return done;
  }
  void go_back_to(uint64_t number) { to_send_ = std::min(to_send_, std::max(number, confirmed_)); }
  /// The peer was not ready.
  void stay_silent_until(Instant then) {
    silent_until_ = then;
    due_ = then + timeout_;
  }

  // --- the timeout of the oldest unanswered packet
  bool idle() const { return confirmed_ == to_send_; }
  /// How long nothing has been answered of what is under way.
  Duration unanswered(Instant now) const { return idle() ? Duration(0) : now - unanswered_since_; }
  /// An event comes for it.
  bool armed() const { return armed_; }
  Instant due() const { return due_; }
  // These say when the event is to come.
  Instant begin_timeout(Instant now) {
    due_ = now + timeout_;
    return resume_timeout();
  }
  Instant resume_timeout() {
    armed_ = true;
    return due_;
  }
  /// It came.
  void end_timeout() { armed_ = false; }
  /// It has passed.  False: too often.
  bool retry() {
    if (++retries_ > retries_max_) {
      return false;
    }
    to_send_ = confirmed_;
    return true;
  }

 private:
  static constexpr uint64_t window = 128;  ///< packets that may be under way

  std::deque<RdmaWork> work_;
  uint64_t next_ = 0;       ///< number of the next packet to be made
  uint64_t to_send_ = 0;    ///< of the next one to leave
  uint64_t confirmed_ = 0;  ///< all below have been acknowledged
  uint64_t highest_ = 0;    ///< below it, packets leave again
  Duration timeout_{};
  unsigned retries_max_ = 7;
  unsigned retries_ = 0;
  Instant due_{};
  Instant unanswered_since_{};
  bool armed_ = false;
  Instant silent_until_{};
};

}  // namespace nccl_ha::sim
