#include "runtime/telemetry/recorder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "runtime/telemetry/counter_file.h"

namespace nccl_ha {
namespace {

// Of RoundStep.
#define NHA_ROUND_STEPS                                                               \
  "taken_down|work_back|down_said|down_heard|suspect_said|suspect_heard|report_said|" \
  "report_heard|offer_said|offer_heard|answer_said|answer_heard|in_use"
#define NHA_A(name, unit, values) \
  TraceField { name, unit, values, 2, 0, 64 }
#define NHA_B(name, unit, values) \
  TraceField { name, unit, values, 3, 0, 64 }
#define NHA_C(name, unit, values) \
  TraceField { name, unit, values, 1, 16, 16 }
#define NHA_PART(shift, bits, name, unit) \
  TraceField { name, unit, "", 3, shift, bits }
#define NHA_NAMED(shift, bits, name, values) \
  TraceField { name, "", values, 3, shift, bits }
// As trace_request() packs it.
#define NHA_REQUEST                                                  \
  NHA_PART(0, 32, "size", "bytes"), NHA_PART(32, 8, "position", ""), \
      NHA_NAMED(40, 8, "what", "send|receive|flush")
// As trace_chunk() packs it.
#define NHA_CHUNK                                                                                  \
  NHA_PART(0, 32, "size", "bytes"), NHA_PART(32, 8, "position", ""), NHA_PART(40, 8, "chunk", ""), \
      NHA_PART(48, 8, "chunks", "chunks"), NHA_NAMED(56, 8, "whole", "no|yes")

template <class... Fields>
constexpr std::array<TraceField, sizeof...(Fields)> fields_of(Fields... fields) {
  return {fields...};
}

#define NHA_EVENT(name, help, ...) constexpr auto name##_fields = fields_of(__VA_ARGS__);
#include "runtime/telemetry/events.def"
#undef NHA_EVENT

constexpr std::array infos{
#define NHA_EVENT(name, help, ...) TraceEventInfo{#name, help, name##_fields},
#include "runtime/telemetry/events.def"
#undef NHA_EVENT
};

}  // namespace

const TraceEventInfo& describe(TraceEvent event) {
  static constexpr TraceEventInfo unknown{"unknown", "", {}};
  const auto index = static_cast<size_t>(event);
  return index < infos.size() ? infos[index] : unknown;
}

size_t trace_event_count() { return infos.size(); }

uint64_t value_of(const RecordedEvent& event, unsigned word, unsigned shift, unsigned bits) {
  uint64_t value = 0;
  switch (word) {
    case 1:
      value = uint64_t{event.actor} << 32 | uint64_t{event.c} << 16 |
              static_cast<uint64_t>(event.event);
      break;
    case 2:
      value = event.a;
      break;
    case 3:
      value = event.b;
      break;
    default:
      return 0;
  }
  value = shift < 64 ? value >> shift : 0;
  return bits >= 64 ? value : value & ((uint64_t{1} << bits) - 1);
}

namespace {

/// For who has no file.
struct PlainRing {
  explicit PlainRing(size_t capacity) : slots(capacity) {}
  counter_layout::Ring ring{};
  std::vector<counter_layout::RingSlot> slots;
};

}  // namespace

void Recorder::use_plain_memory(size_t capacity) {
  const size_t slots = capacity == 0 ? 0 : std::bit_ceil(capacity);
  auto plain = std::make_shared<PlainRing>(slots);
  ring_ = &plain->ring;
  slots_ = slots == 0 ? nullptr : plain->slots.data();
  mask_ = slots - 1;
  memory_ = std::move(plain);
}

Recorder::Recorder(size_t capacity) { use_plain_memory(capacity); }

Recorder::Recorder(counter_layout::Ring* ring, counter_layout::RingSlot* slots,
                   std::shared_ptr<void> memory)
    : memory_(std::move(memory)), ring_(ring), slots_(slots), mask_(ring->capacity - 1) {}

Recorder::Recorder(const CounterPlace& place, size_t capacity) {
  const bool wanted = place.file && place.parent != 0 && capacity != 0;
  const auto taken = wanted ? place.file->take_ring(place.parent) : CounterFile::RingPlace{};
  if (taken.ring == nullptr) {
    use_plain_memory(capacity);
    return;
  }
  memory_ = place.file;
  ring_ = taken.ring;
  slots_ = taken.slots;
  mask_ = taken.ring->capacity - 1;
}

uint64_t Recorder::overwritten() const {
  const uint64_t count = written();
  return count > capacity() ? count - capacity() : 0;
}

std::vector<RecordedEvent> Recorder::snapshot() const {
  return read_ring(slots_, capacity(), written());
}

std::vector<RecordedEvent> read_ring(const counter_layout::RingSlot* slots, uint64_t capacity,
                                     uint64_t written, uint64_t there) {
  std::vector<RecordedEvent> events;
  if (capacity == 0) {
    return events;
  }
  const uint64_t begin = written > capacity ? written - capacity : 0;
  const auto read = [&](uint64_t number) {
    const counter_layout::RingSlot& slot = slots[number & (capacity - 1)];
    const uint64_t before = slot.version.load(std::memory_order_acquire);
    uint64_t words[4];
    for (size_t i = 0; i < 4; ++i) {
      words[i] = slot.words[i].load(std::memory_order_acquire);
    }
    const uint64_t after = slot.version.load(std::memory_order_relaxed);
    if (before != 2 * number + 2 || after != before) {
      return;  // overwritten meanwhile
    }
    RecordedEvent event;
    event.time_ns = static_cast<int64_t>(words[0]);
    event.actor = static_cast<uint32_t>(words[1] >> 32);
    event.event = static_cast<TraceEvent>(words[1] & 0xFFFF);
    event.c = static_cast<uint16_t>(words[1] >> 16);
    event.a = words[2];
    event.b = words[3];
    events.push_back(event);
  };
  events.reserve(std::min(written - begin, there));
  if (there >= capacity) {
    for (uint64_t number = begin; number != written; ++number) {
      read(number);
    }
    return events;
  }
  // No longer than what is there, however large a damaged capacity is.
  std::vector<uint64_t> numbers;
  for (uint64_t slot = 0; slot < there; ++slot) {
    const uint64_t ahead = (slot - begin) & (capacity - 1);
    if (ahead < written - begin) {
      numbers.push_back(begin + ahead);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  for (const uint64_t number : numbers) {
    read(number);
  }
  return events;
}

}  // namespace nccl_ha
