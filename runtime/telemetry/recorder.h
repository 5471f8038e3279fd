// Flight recorder: a ring of the last events of one thread, for dumps after something went wrong.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/telemetry/counter_layout.h"

namespace nccl_ha {

struct CounterPlace;

enum class TraceEvent : uint16_t {
#define NHA_EVENT(name, ...) name,
#include "runtime/telemetry/events.def"
#undef NHA_EVENT
};

/// Some bits of an event, by name.
struct TraceField {
  const char* name;
  const char* unit;    ///< empty: a plain number
  const char* values;  ///< their names, from 0 on, separated by |; empty: they have none
  uint8_t word;        ///< of counter_layout::RingSlot
  uint8_t shift;
  uint8_t bits;
};

/// Names for readers of a dump.
struct TraceEventInfo {
  const char* name;
  const char* help;
  std::span<const TraceField> fields;
};
const TraceEventInfo& describe(TraceEvent event);
size_t trace_event_count();

struct RecordedEvent {
  int64_t time_ns = 0;  ///< of the recording thread's Clock
  uint32_t actor = 0;
  TraceEvent event{};
  uint16_t c = 0;
  uint64_t a = 0;
  uint64_t b = 0;
};
static_assert(sizeof(RecordedEvent) == 32);

/// What a field of an event holds.
uint64_t value_of(const RecordedEvent& event, unsigned word, unsigned shift, unsigned bits);

/// Word b of events about chunks.  `whole`: the event is also that of the transfer, which begins or
/// ends with this chunk, as nearly all do; it has no other one.
constexpr uint64_t trace_chunk(uint32_t bytes, uint32_t position, uint32_t chunk, uint32_t of,
                               bool whole = false) {
  return uint64_t{bytes} | uint64_t{position & 255U} << 32 | uint64_t{chunk & 255U} << 40 |
         uint64_t{of & 255U} << 48 | uint64_t{whole} << 56;
}

/// Of request_asked and request_noticed.
enum class TraceRequest : uint8_t { send, receive, flush };
/// Word b of these events.
constexpr uint64_t trace_request(TraceRequest what, uint32_t bytes, uint32_t position) {
  return uint64_t{bytes} | uint64_t{position & 255U} << 32 |
         uint64_t{static_cast<uint8_t>(what)} << 40;
}

/// Steps of a failover round (round_part), in the order of NHA_ROUND_STEPS.
enum class RoundStep : uint8_t {
  taken_down,
  work_back,
  down_said,
  down_heard,
  suspect_said,
  suspect_heard,
  report_said,
  report_heard,
  offer_said,
  offer_heard,
  answer_said,
  answer_heard,
  in_use,
};

/// Written by one thread, read by any.
class Recorder {
 public:
  /// `capacity` is rounded up to a power of two; 0 records nothing.
  explicit Recorder(size_t capacity);
  /// In the file of `place`, for the worker whose block that names, if there is room.
  Recorder(const CounterPlace& place, size_t capacity);
  /// In a ring that lives as long as `memory`.
  Recorder(counter_layout::Ring* ring, counter_layout::RingSlot* slots,
           std::shared_ptr<void> memory);

  [[gnu::always_inline]] void record(TraceEvent event, uint32_t actor, uint64_t a, uint64_t b,
                                     Instant now, uint16_t c = 0) {
    note(event, actor, a, b, c);
    stamp(now);
  }
  /// The same without a time: it gets that of the next stamp(), and until then readers do not see
  /// it.  A worker stamps when it has a reason to look at the clock, so that nobody waits for one:
  /// some microseconds late, or Worker::max_poll_gap() when its caller stops right there.
  [[gnu::always_inline]] void note(TraceEvent event, uint32_t actor, uint64_t a, uint64_t b,
                                   uint16_t c = 0) {
    if (slots_ == nullptr) {
      return;
    }
    const uint64_t number = noted_++;
    counter_layout::RingSlot& slot = slots_[number & mask_];
    // Odd while being written; a reader that sees two different values throws its copy away.
    slot.version.store(2 * number + 1, std::memory_order_relaxed);
    slot.words[1].store(uint64_t{actor} << 32 | uint64_t{c} << 16 | static_cast<uint64_t>(event),
                        std::memory_order_release);
    slot.words[2].store(a, std::memory_order_release);
    slot.words[3].store(b, std::memory_order_release);
  }
  /// How many wait for that.
  uint64_t unstamped() const { return noted_ - stamped_; }
  /// The time of a turn may be older than the one of a stamp() in between: of one thread, times
  /// never go back.
  void stamp(Instant now) {
    now = last_stamp_ = std::max(last_stamp_, now);
    const auto time = static_cast<uint64_t>(now.time_since_epoch().count());
    // None of these changes meanwhile, which a compiler cannot know.
    counter_layout::RingSlot* const slots = slots_;
    const uint64_t mask = mask_;
    const uint64_t end = noted_;
    for (uint64_t number = std::exchange(stamped_, end); number != end; ++number) {
      counter_layout::RingSlot& slot = slots[number & mask];
      slot.words[0].store(time, std::memory_order_release);
      slot.version.store(2 * number + 2, std::memory_order_release);
    }
    ring_->written.store(end, std::memory_order_release);
  }

  /// Any thread: the events still in the ring, oldest first, without those being written.
  std::vector<RecordedEvent> snapshot() const;
  /// Events recorded since the beginning, and how many of them are no longer in the ring.
  uint64_t written() const { return ring_->written.load(std::memory_order_acquire); }
  uint64_t overwritten() const;
  size_t capacity() const { return slots_ == nullptr ? 0 : mask_ + 1; }

 private:
  void use_plain_memory(size_t capacity);

  std::shared_ptr<void> memory_;
  counter_layout::Ring* ring_;
  counter_layout::RingSlot* slots_;  ///< null: nothing is recorded
  uint64_t mask_;
  uint64_t noted_ = 0;
  uint64_t stamped_ = 0;
  Instant last_stamp_{};
};

/// The events still in a ring of which `written` were recorded, oldest first, without those being
/// written.  Any thread, also of another process.
/// Of the slots, `there` are in memory.
std::vector<RecordedEvent> read_ring(const counter_layout::RingSlot* slots, uint64_t capacity,
                                     uint64_t written, uint64_t there = UINT64_MAX);

}  // namespace nccl_ha
