#include "runtime/telemetry/recorder.h"

#include <array>
#include <bit>
#include <utility>

#include "runtime/telemetry/counter_file.h"

namespace nccl_ha {
namespace {

constexpr std::array infos{
#define NHA_EVENT(name, a, b, help) TraceEventInfo{#name, a, b, help},
#include "runtime/telemetry/events.def"
#undef NHA_EVENT
};

}  // namespace

const TraceEventInfo& describe(TraceEvent event) {
  static constexpr TraceEventInfo unknown{"unknown", "", "", ""};
  const auto index = static_cast<size_t>(event);
  return index < infos.size() ? infos[index] : unknown;
}

size_t trace_event_count() { return infos.size(); }

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
                                     uint64_t written) {
  std::vector<RecordedEvent> events;
  if (capacity == 0) {
    return events;
  }
  const uint64_t begin = written > capacity ? written - capacity : 0;
  events.reserve(written - begin);
  for (uint64_t number = begin; number != written; ++number) {
    const counter_layout::RingSlot& slot = slots[number & (capacity - 1)];
    const uint64_t before = slot.version.load(std::memory_order_acquire);
    uint64_t words[4];
    for (size_t i = 0; i < 4; ++i) {
      words[i] = slot.words[i].load(std::memory_order_acquire);
    }
    const uint64_t after = slot.version.load(std::memory_order_relaxed);
    if (before != 2 * number + 2 || after != before) {
      continue;  // overwritten meanwhile
    }
    RecordedEvent event;
    event.time_ns = static_cast<int64_t>(words[0]);
    event.actor = static_cast<uint32_t>(words[1] >> 32);
    event.event = static_cast<TraceEvent>(words[1] & 0xFFFF);
    event.a = words[2];
    event.b = words[3];
    events.push_back(event);
  }
  return events;
}

}  // namespace nccl_ha
