// The receiving half's reordering window: which segments arrived, and what the last segment of
// each fragment said, until everything before it has been delivered.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/fabric/datagram/wire.h"

namespace nccl_ha::fabric {

/// What must be kept of a segment until it is its turn.
struct ArrivedSegment {
  uint8_t flags = 0;
  uint32_t immediate = 0;
  uint32_t fragment_length = 0;
};

class ReceiveWindow {
 public:
  enum class Verdict : uint8_t { fresh, duplicate, beyond };

  explicit ReceiveWindow(uint32_t size) : mask_(size - 1), slots_(size), arrived_(size / 64 + 1) {}

  Verdict check(uint32_t sequence) const {
    const int32_t distance = sequence_distance(sequence, next_);
    if (distance < 0) {
      return Verdict::duplicate;
    }
    if (sequence_distance(sequence, delivered_) >= static_cast<int32_t>(size())) {
      return Verdict::beyond;
    }
    return test(sequence) ? Verdict::duplicate : Verdict::fresh;
  }

  /// Records a fresh segment; true when it was the one expected.
  bool arrive(uint32_t sequence, const ArrivedSegment& segment) {
    NHA_DASSERT(check(sequence) == Verdict::fresh, "a segment is taken once");
    slots_[sequence & mask_] = segment;
    set(sequence, true);
    if (sequence_distance(sequence, highest_) >= 0) {
      highest_ = sequence + 1;
    }
    if (sequence != next_) {
      return false;
    }
    while (test(next_) && next_ - delivered_ < size()) {
      ++next_;
    }
    return true;
  }

  /// The oldest arrived and undelivered segment, or null.
  const ArrivedSegment* front() const {
    return delivered_ == next_ ? nullptr : &slots_[delivered_ & mask_];
  }
  void pop() {
    NHA_DASSERT(delivered_ != next_, "nothing to deliver");
    set(delivered_, false);
    ++delivered_;
  }

  uint32_t next() const { return next_; }
  uint32_t size() const { return mask_ + 1; }
  bool gap() const { return sequence_distance(highest_, next_) > 0; }
  /// Segments that may arrive beyond next().
  uint32_t credits() const { return size() - (next_ - delivered_); }

  /// Selective acknowledgement: bit i says that segment next() + 1 + i has arrived.  Returns bytes.
  size_t selective(std::span<std::byte> out) const {
    if (!gap()) {
      return 0;
    }
    const uint32_t bits =
        std::min<uint32_t>(highest_ - next_ - 1, static_cast<uint32_t>(out.size() * 8));
    const size_t bytes = (bits + 7) / 8;
    std::fill_n(out.begin(), bytes, std::byte{0});
    for (uint32_t i = 0; i < bits; ++i) {
      if (test(next_ + 1 + i)) {
        out[i / 8] |= static_cast<std::byte>(1U << (i % 8));
      }
    }
    return bytes;
  }

  /// What does not hold; walks all of it.
  std::optional<std::string> self_check() const {
    if (next_ - delivered_ > size() || sequence_distance(highest_, next_) < 0 ||
        highest_ - delivered_ > size()) {
      return "delivered, expected and highest segment are out of order";
    }
    for (uint32_t sequence = delivered_; sequence != highest_; ++sequence) {
      if (!test(sequence) && sequence_distance(sequence, next_) < 0) {
        return "a segment in order has not arrived";
      }
    }
    return std::nullopt;
  }

 private:
  bool test(uint32_t sequence) const {
    const uint32_t i = sequence & mask_;
    return ((arrived_[i / 64] >> (i % 64)) & 1) != 0;
  }
  void set(uint32_t sequence, bool value) {
    const uint32_t i = sequence & mask_;
    const uint64_t bit = uint64_t{1} << (i % 64);
    arrived_[i / 64] = value ? arrived_[i / 64] | bit : arrived_[i / 64] & ~bit;
  }

  uint32_t mask_;
  std::vector<ArrivedSegment> slots_;
  std::vector<uint64_t> arrived_;
  uint32_t next_ = 0;       // everything below has arrived
  uint32_t delivered_ = 0;  // everything below has been delivered
  uint32_t highest_ = 0;    // one behind the highest arrived
};

}  // namespace nccl_ha::fabric
