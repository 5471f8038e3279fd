// Numbers the messages of a connection's control lane, so that each may travel over every way there
// is and is taken once and in order.
//
// A way (the TCP stream, a path) carries a run of messages without gaps: when it comes up it is
// given everything that the peer has not confirmed, and from then on each new one.  What the peer
// has taken already it drops by its number.  One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "ha/invariant.h"

namespace nccl_ha::ha {

class ControlSequencer {
 public:
  /// More unconfirmed messages than the protocol can produce while the peer is silent.
  static constexpr size_t open_max = 256;

  /// Gives the next number to a message and keeps it until it is confirmed.  False: too many are
  /// open.
  [[nodiscard]] bool add(std::vector<std::byte> frame) {
    open_.push_back(std::move(frame));
    return open_.size() <= open_max;
  }
  /// Numbers begin at 1; 0 stands for none.
  uint32_t first_open() const { return first_open_; }
  uint32_t next() const { return first_open_ + static_cast<uint32_t>(open_.size()); }
  std::span<std::byte> frame(uint32_t number) { return open_[number - first_open_]; }

  /// The peer has taken everything below `number`.  False: it cannot have.
  [[nodiscard]] bool confirmed(uint32_t number) {
    if (number > next()) {
      return false;
    }
    while (first_open_ < number && invariants_.hold(!open_.empty(), "what is confirmed was open")) {
      open_.pop_front();
      ++first_open_;
    }
    return true;
  }
  /// The same by the low bits of the number; one that is long confirmed changes nothing.
  void confirmed_low(uint16_t low) {
    const auto behind = static_cast<uint16_t>(next() - low);
    if (behind <= open_.size()) {
      static_cast<void>(confirmed(next() - behind));
    }
  }

  enum class Verdict : uint8_t { take, seen, gap };
  /// What to do with the peer's message of that number.
  Verdict judge(uint32_t number) {
    const uint32_t before = expected_;
    Verdict verdict = number < expected_ ? Verdict::seen : Verdict::gap;
    if (number == expected_) {
      ++expected_;
      verdict = Verdict::take;
    }
    invariants_.hold((verdict == Verdict::take) == (expected_ == before + 1),
                     "each message is taken once and in order");
    return verdict;
  }
  /// Everything below has been taken.
  uint32_t expected() const { return expected_; }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  std::deque<std::vector<std::byte>> open_;
  uint32_t first_open_ = 1;
  uint32_t expected_ = 1;
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
