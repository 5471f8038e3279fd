// Eager messages that have arrived: which of them may be given to a receive, and in which order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "actors/eager.h"

namespace nccl_ha {

/// The slots that a sender writes.  Messages are numbered in the order in which they were sent, and
/// may come in another one, or twice after a failover.  Nobody gives one to a receive before all
/// that were sent earlier have come.  One thread.
class EagerArrivals {
 public:
  enum class Verdict : uint8_t {
    fresh,
    known,      ///< it came before
    malformed,  ///< the sender has no free slot for such a one
  };
  /// A message that came; the head is a copy, as the peer may write the slot at any time.
  struct Message {
    EagerHead head;
    bool here = false;
    bool taken = false;  ///< by a receive
  };

  /// `low_bits`: of its number; `bytes`: of the whole write.
  Verdict arrive(uint32_t low_bits, uint32_t bytes, const EagerSlot& slot) {
    const uint64_t ahead = Immediate::group_distance_ahead(low_bits, oldest_);
    if (ahead >= eager_slots) {
      const uint64_t behind = Immediate::group_distance(low_bits, oldest_);
      return behind <= oldest_ && behind <= Immediate::groups_told_apart / 2 ? Verdict::known
                                                                             : Verdict::malformed;
    }
    Message& message = at(oldest_ + ahead);
    if (message.here) {
      return Verdict::known;
    }
    const EagerHead head = slot.head;
    if (bytes < sizeof head || head.bytes != bytes - sizeof head || head.bytes > eager_bytes_max) {
      return Verdict::malformed;
    }
    message = {head, true, false};
    newest_ = oldest_ + ahead;
    ++waiting_;
    while (in_order_ < oldest_ + eager_slots && at(in_order_).here) {
      ++in_order_;
    }
    return Verdict::fresh;
  }
  /// The last one that was fresh.
  const Message& newest() { return at(newest_); }
  /// Those that have come and that no receive has taken.
  bool any() const { return waiting_ != 0; }
  /// The numbers of messages that a receive may take, and of some that were taken.
  uint64_t begin() const { return oldest_; }
  uint64_t end() const { return in_order_; }
  Message& at(uint64_t number) { return messages_[number % eager_slots]; }
  void take(uint64_t number) {
    at(number).taken = true;
    --waiting_;
    while (oldest_ != in_order_ && at(oldest_).taken) {
      at(oldest_) = {};
      ++oldest_;
    }
  }
  /// Every one below has been taken.
  uint64_t taken() const { return oldest_; }

 private:
  std::array<Message, eager_slots> messages_{};
  uint64_t oldest_ = 0;  ///< that has not been taken
  uint64_t newest_ = 0;
  uint64_t in_order_ = 0;  ///< every one below has come
  size_t waiting_ = 0;
};

}  // namespace nccl_ha
