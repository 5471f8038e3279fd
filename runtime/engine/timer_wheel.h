// Hierarchical timing wheel (Varghese and Lauck, 1987): arm and cancel in constant time.
//
// Four levels of 64 slots; a tick is 2^14 ns.  A timer never fires early and at most one tick late
// (as far as expire() is called).  Timers due in the same tick fire in the order in which they were
// armed, so that a simulation repeats exactly.  Owner thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "runtime/base/clock.h"

namespace nccl_ha {

class TimerWheel;

/// Embedded in whoever waits.  Must be cancelled before it is destroyed.
class Timer {
 public:
  Timer() = default;
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer();
  void bind(void (*fire)(void* owner), void* owner) {
    fire_ = fire;
    owner_ = owner;
  }
  bool armed() const { return previous_ != nullptr; }
  Instant deadline() const { return deadline_; }

 private:
  friend class TimerWheel;
  Timer* previous_ = nullptr;
  Timer* next_ = nullptr;
  void (*fire_)(void*) = nullptr;
  void* owner_ = nullptr;
  Instant deadline_{};
  uint64_t due_tick_ = 0;
  uint64_t order_ = 0;
  uint8_t level_ = 0;
  uint8_t slot_ = 0;
};

class TimerWheel {
 public:
  static constexpr int tick_bits = 14;
  static constexpr Duration tick{int64_t{1} << tick_bits};

  explicit TimerWheel(Instant start);
  TimerWheel(const TimerWheel&) = delete;
  TimerWheel& operator=(const TimerWheel&) = delete;
  ~TimerWheel();

  /// (Re-)arms; a deadline in the past fires at the next expire(), also when a callback arms it.
  void arm(Timer& timer, Instant deadline);
  void cancel(Timer& timer);
  /// Fires what is due, at most `limit`; callbacks may arm and cancel any timer, themselves too.
  /// What they arm waits for the next call, so that no timer can keep others from their turn.
  size_t expire(Instant now, size_t limit = std::numeric_limits<size_t>::max()) {
    return tick_of(now) <= current_ && !due_now_ ? 0 : advance(now, limit);
  }
  /// Not later than the first deadline, rounded up to its tick, and mostly that; nullopt when nothing
  /// is armed.
  std::optional<Instant> next_deadline() const;
  size_t size() const { return size_; }

 private:
  static constexpr int level_bits = 6;
  static constexpr size_t slots = size_t{1} << level_bits;
  static constexpr size_t levels = 4;
  static constexpr uint64_t slot_mask = slots - 1;

  static uint64_t tick_of(Instant when) {
    const int64_t ns = when.time_since_epoch().count();
    return ns <= 0 ? 0 : static_cast<uint64_t>(ns) >> tick_bits;
  }
  /// The first tick that begins at or after `when`; unsigned, so that Instant::max() fits.
  static uint64_t tick_from(Instant when) {
    const int64_t ns = when.time_since_epoch().count();
    const uint64_t last_ns = (uint64_t{1} << tick_bits) - 1;
    return ns <= 0 ? 0 : (static_cast<uint64_t>(ns) + last_ns) >> tick_bits;
  }
  size_t advance(Instant now, size_t limit);
  void place(Timer& timer);
  void unlink(Timer& timer);
  void cascade(size_t level);
  /// Fires what was armed up to `last_order`.
  size_t fire_slot(size_t slot, uint64_t last_order, size_t limit);
  /// First tick after current_ at which a slot of some level has to be looked at.
  std::optional<uint64_t> next_tick() const;
  /// The same, later where the first timer of that slot is seen to be.
  uint64_t refined(uint64_t begin) const;

  std::array<std::array<Timer, slots>, levels> heads_;  // circular lists
  std::array<uint64_t, levels> occupied_{};             // bit per slot
  uint64_t current_;  // every timer with due_tick_ <= current_ has fired or is in due_now_'s slot
  uint64_t target_;   // where the latest expire() leads; nothing is armed for before it
  uint64_t order_ = 0;
  size_t size_ = 0;
  bool due_now_ =
      false;  // something lies in the slot of current_ (armed for the past, or limit hit)
};

}  // namespace nccl_ha
