#include "runtime/recorder.h"

#include <array>
#include <bit>

namespace nccl_ha {
namespace {

constexpr std::array infos{
#define NHA_EVENT(name, a, b, help) TraceEventInfo{#name, a, b, help},
#include "runtime/events.def"
#undef NHA_EVENT
};

}  // namespace

const TraceEventInfo& describe(TraceEvent event) {
  static constexpr TraceEventInfo unknown{"unknown", "", "", ""};
  const auto index = static_cast<size_t>(event);
  return index < infos.size() ? infos[index] : unknown;
}

size_t trace_event_count() { return infos.size(); }

Recorder::Recorder(size_t capacity)
    : slots_(capacity == 0 ? 0 : std::bit_ceil(capacity)),
      mask_(slots_.empty() ? 0 : slots_.size() - 1) {}

uint64_t Recorder::overwritten() const {
  const uint64_t count = written();
  return count > slots_.size() ? count - slots_.size() : 0;
}

std::vector<RecordedEvent> Recorder::snapshot() const {
  std::vector<RecordedEvent> events;
  const uint64_t end = written();
  const uint64_t begin = end > slots_.size() ? end - slots_.size() : 0;
  events.reserve(end - begin);
  for (uint64_t number = begin; number < end; ++number) {
    const Slot& slot = slots_[number & mask_];
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
