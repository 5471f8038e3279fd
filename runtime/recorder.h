// Flight recorder: a ring of the last events of one thread, for dumps after something went wrong.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/clock.h"

namespace nccl_ha {

enum class TraceEvent : uint16_t {
#define NHA_EVENT(name, a, b, help) name,
#include "runtime/events.def"
#undef NHA_EVENT
};

/// Names for readers of a dump.
struct TraceEventInfo {
  const char* name;
  const char* a;
  const char* b;
  const char* help;
};
const TraceEventInfo& describe(TraceEvent event);
size_t trace_event_count();

struct RecordedEvent {
  int64_t time_ns = 0;  ///< of the recording thread's Clock
  uint32_t actor = 0;
  TraceEvent event{};
  uint16_t reserved = 0;
  uint64_t a = 0;
  uint64_t b = 0;
};
static_assert(sizeof(RecordedEvent) == 32);

/// Written by one thread, read by any.
class Recorder {
 public:
  /// `capacity` is rounded up to a power of two; 0 records nothing.
  explicit Recorder(size_t capacity);

  void record(TraceEvent event, uint32_t actor, uint64_t a, uint64_t b, Instant now) {
    note(event, actor, a, b);
    stamp(now);
  }
  /// The same without a time, so that nobody waits for a clock: it gets one with the next stamp(),
  /// and until then readers do not see it.  That is when the worker has a reason to look at the
  /// clock, or Worker::patience() later when its caller stops right there.  Where ticks are told
  /// of, the time is that of the call in which it was noted, else that of the stamp.
  [[gnu::always_inline]] void note(TraceEvent event, uint32_t actor, uint64_t a, uint64_t b) {
    if (slots_.empty()) {
      return;
    }
    const uint64_t number = noted_++;
    Slot& slot = slots_[number & mask_];
    // Odd while being written; a reader that sees two different values throws its copy away.
    slot.version.store(2 * number + 1, std::memory_order_relaxed);
    slot.words[0].store(ticks_, std::memory_order_release);
    slot.words[1].store(uint64_t{actor} << 32 | static_cast<uint64_t>(event),
                        std::memory_order_release);
    slot.words[2].store(a, std::memory_order_release);
    slot.words[3].store(b, std::memory_order_release);
  }
  /// A turn began at this count of ticks (cpu_ticks()).
  void tell_ticks(uint64_t ticks) { ticks_ = ticks; }
  /// How long one takes; 0: not known, so that ticks say nothing.
  void tell_rate(double ns_per_tick) { ns_per_tick_ = ns_per_tick; }
  /// How many wait for stamp().
  uint64_t unstamped() const { return noted_ - stamped_; }
  /// `now`: in the turn whose ticks were told last.
  void stamp(Instant now) {
    const int64_t now_ns = now.time_since_epoch().count();
    for (; stamped_ != noted_; ++stamped_) {
      Slot& slot = slots_[stamped_ & mask_];
      const uint64_t ticks = slot.words[0].load(std::memory_order_relaxed);
      // Never before what was noted before it, whatever another processor's count says.
      const auto ago = static_cast<int64_t>(
          ns_per_tick_ * static_cast<double>(static_cast<int64_t>(ticks_ - ticks)));
      latest_ns_ = std::max(latest_ns_, now_ns - std::max<int64_t>(ago, 0));
      slot.words[0].store(static_cast<uint64_t>(std::min(latest_ns_, now_ns)),
                          std::memory_order_release);
      slot.version.store(2 * stamped_ + 2, std::memory_order_release);
    }
    latest_ns_ = now_ns;
    written_.store(stamped_, std::memory_order_release);
  }

  /// Any thread: the events still in the ring, oldest first, without those being written.
  std::vector<RecordedEvent> snapshot() const;
  /// Events recorded since the beginning, and how many of them are no longer in the ring.
  uint64_t written() const { return written_.load(std::memory_order_acquire); }
  uint64_t overwritten() const;
  size_t capacity() const { return slots_.size(); }

 private:
  struct Slot {
    std::atomic<uint64_t> version{0};
    std::atomic<uint64_t> words[4] = {};
  };
  std::vector<Slot> slots_;
  uint64_t mask_ = 0;
  uint64_t noted_ = 0;
  uint64_t stamped_ = 0;
  uint64_t ticks_ = 0;
  double ns_per_tick_ = 0;
  int64_t latest_ns_ = 0;  ///< given to an event
  std::atomic<uint64_t> written_{0};
};

}  // namespace nccl_ha
