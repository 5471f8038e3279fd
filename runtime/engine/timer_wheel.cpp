#include "runtime/engine/timer_wheel.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "runtime/base/check.h"

namespace nccl_ha {

Timer::~Timer() { NHA_DASSERT(!armed() || next_ == this, "an armed timer was destroyed"); }

TimerWheel::TimerWheel(Instant start) : current_(tick_of(start)), target_(current_) {
  for (auto& level : heads_) {
    for (Timer& head : level) {
      head.previous_ = head.next_ = &head;
    }
  }
}

TimerWheel::~TimerWheel() {
  // Whoever still waits just never hears of it.
  for (auto& level : heads_) {
    for (Timer& head : level) {
      while (head.next_ != &head) {
        unlink(*head.next_);
      }
    }
  }
}

void TimerWheel::arm(Timer& timer, Instant deadline) {
  cancel(timer);
  timer.deadline_ = deadline;
  // Rounded up: the tick in which the deadline lies is over only at its end.  Not before target_: a
  // callback that arms for the past while the wheel still turns would hold it where it is.
  timer.due_tick_ = std::max(tick_from(deadline), target_);
  timer.order_ = ++order_;
  place(timer);
  ++size_;
}

void TimerWheel::cancel(Timer& timer) {
  if (timer.armed()) {
    unlink(timer);
    --size_;
  }
}

void TimerWheel::place(Timer& timer) {
  const uint64_t due = std::max(timer.due_tick_, current_);
  const uint64_t distance = due ^ current_;
  size_t level = 0;
  // The highest group of bits in which due and current differ names the level.
  while (level + 1 < levels && (distance >> (level_bits * (level + 1))) != 0) {
    ++level;
  }
  uint64_t slot = (due >> (level_bits * level)) & slot_mask;
  if ((distance >> (level_bits * levels)) != 0) {
    // Beyond the end of the top level's present round.  The slots go round: what is due within the
    // next 63 has a slot of its own; what lies farther waits in the last and is placed again.
    level = levels - 1;
    const uint64_t position = current_ >> (level_bits * level);
    const uint64_t ahead = (due >> (level_bits * level)) - position;
    slot = (position + std::min<uint64_t>(ahead, slots - 1)) & slot_mask;
  }
  timer.level_ = static_cast<uint8_t>(level);
  timer.slot_ = static_cast<uint8_t>(slot);
  Timer& head = heads_[level][slot];
  // Sorted by arming order: a timer that comes down from a higher level may be older than one that
  // was put here directly.
  Timer* after = head.previous_;
  while (after != &head && after->order_ > timer.order_) {
    after = after->previous_;
  }
  timer.previous_ = after;
  timer.next_ = after->next_;
  after->next_->previous_ = &timer;
  after->next_ = &timer;
  occupied_[level] |= uint64_t{1} << slot;
  due_now_ = due_now_ || (level == 0 && due == current_);
}

void TimerWheel::unlink(Timer& timer) {
  timer.previous_->next_ = timer.next_;
  timer.next_->previous_ = timer.previous_;
  timer.previous_ = timer.next_ = nullptr;
  Timer& head = heads_[timer.level_][timer.slot_];
  if (head.next_ == &head) {
    occupied_[timer.level_] &= ~(uint64_t{1} << timer.slot_);
  }
}

void TimerWheel::cascade(size_t level) {
  const auto slot = static_cast<size_t>((current_ >> (level_bits * level)) & slot_mask);
  Timer& head = heads_[level][slot];
  while (head.next_ != &head) {
    Timer& timer = *head.next_;
    unlink(timer);
    place(timer);
  }
}

size_t TimerWheel::fire_slot(size_t slot, uint64_t last_order, size_t limit) {
  Timer& head = heads_[0][slot];
  size_t fired = 0;
  while (fired < limit && head.next_ != &head && head.next_->order_ <= last_order) {
    Timer& timer = *head.next_;
    unlink(timer);
    --size_;
    ++fired;
    try {
      timer.fire_(timer.owner_);
    } catch (...) {
      due_now_ = true;  // others of this slot fire with the next call
      throw;
    }
  }
  return fired;
}

std::optional<uint64_t> TimerWheel::next_tick() const {
  std::optional<uint64_t> best;
  for (size_t level = 0; level < levels; ++level) {
    if (occupied_[level] == 0) {
      continue;
    }
    const uint64_t position = current_ >> (level_bits * level);
    // Distance to the next occupied slot going round, 1..64.
    const uint64_t ahead =
        std::rotr(occupied_[level], static_cast<int>((position + 1) & slot_mask));
    const uint64_t steps = static_cast<uint64_t>(std::countr_zero(ahead)) + 1;
    const uint64_t at = (position + steps) << (level_bits * level);
    best = best ? std::min(*best, at) : at;
  }
  return best;
}

size_t TimerWheel::advance(Instant now, size_t limit) {
  target_ = std::max(tick_of(now), target_);
  // Timers that callbacks arm wait for the next expire(): one that re-arms itself for the past must
  // not keep the loop from ending.  They all lie in target_'s slot or later.
  const uint64_t last_order = order_;
  size_t fired = 0;
  for (;;) {
    if (due_now_) {
      const auto slot = static_cast<size_t>(current_ & slot_mask);
      due_now_ = false;
      fired += fire_slot(slot, last_order, limit - fired);
      const Timer& head = heads_[0][slot];
      if (head.next_ != &head) {
        due_now_ = true;  // limit reached, or armed by a callback
        return fired;
      }
    }
    const auto next = next_tick();
    if (!next || *next > target_) {
      current_ = std::max(current_, target_);
      return fired;
    }
    current_ = *next;
    for (size_t level = levels - 1; level > 0; --level) {
      if ((current_ & ((uint64_t{1} << (level_bits * level)) - 1)) == 0) {
        cascade(level);
      }
    }
    due_now_ = (occupied_[0] >> (current_ & slot_mask) & 1) != 0;
  }
}

// Whoever sleeps until a slot begins wakes once more for each level that its first timer comes
// down.
uint64_t TimerWheel::refined(uint64_t begin) const {
  constexpr size_t looked_at = 64;
  const auto lowest = std::find_if(occupied_.begin(), occupied_.end(),
                                   [](uint64_t occupied) { return occupied != 0; });
  const auto level = static_cast<size_t>(lowest - occupied_.begin());
  if (level == 0 || level == levels) {
    return begin;
  }
  const Timer& head = heads_[level][(begin >> (level_bits * level)) & slot_mask];
  uint64_t first = std::numeric_limits<uint64_t>::max();
  size_t seen = 0;
  for (const Timer* timer = head.next_; timer != &head; timer = timer->next_) {
    if (++seen > looked_at) {
      return begin;
    }
    first = std::min(first, timer->due_tick_);
  }
  NHA_DASSERT(first >= begin, "a timer lies in a slot that begins after it is due");
  // The top level's slots hold what is due in later rounds too.
  return first < begin + (uint64_t{1} << (level_bits * level)) ? first : begin;
}

std::optional<Instant> TimerWheel::next_deadline() const {
  if (size_ == 0) {
    return std::nullopt;
  }
  if (due_now_) {
    return Instant(Duration(static_cast<int64_t>(current_ << tick_bits)));
  }
  const auto next = next_tick();
  return next ? std::optional(Instant(Duration(static_cast<int64_t>(refined(*next) << tick_bits))))
              : std::nullopt;
}

}  // namespace nccl_ha
