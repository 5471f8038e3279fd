// A file of counters that anybody may have written.
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "runtime/telemetry/counter_reader.h"
#include "runtime/telemetry/trace_dump.h"

namespace {

/// A mapping is aligned like this.
struct alignas(64) Line {
  uint8_t bytes[64];
};

/// A dump of anything can be read, if it can be made.
void check_copy(std::span<const std::byte> bytes) {
  const auto copy = nccl_ha::copy_counters(bytes, "fuzz");
  if (!copy) {
    return;
  }
  std::vector<Line> lines(copy->size() / sizeof(Line) + 1);
  std::memcpy(lines.data(), copy->data(), copy->size());
  std::vector<std::string> damages;
  const auto read =
      nccl_ha::salvage_counters(std::as_bytes(std::span(lines)).first(copy->size()), damages);
  if (!read) {
    __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nccl_ha;
  std::vector<Line> lines((size + sizeof(Line) - 1) / sizeof(Line));
  if (!lines.empty()) {
    std::memcpy(lines.data(), data, size);
  }
  const auto bytes = std::as_bytes(std::span(lines)).first(size);
  const auto snapshot = parse_counters(bytes);
  std::vector<std::string> damages;
  const auto salvaged = salvage_counters(bytes, damages);
  // What is whole is no damage.
  if (snapshot.ok() &&
      (!salvaged.ok() || !damages.empty() || salvaged->blocks.size() != snapshot->blocks.size())) {
    __builtin_trap();
  }
  for (const auto& ring : salvaged.ok() ? salvaged->rings : decltype(salvaged->rings)()) {
    for (const RecordedEvent& event : ring.events) {
      for (const auto& field : salvaged->kind_of(event).fields) {
        if (to_text(field, event).size() > 600) {
          __builtin_trap();
        }
      }
    }
  }
  check_copy(bytes);
  if (!snapshot) {
    return 0;
  }
  for (const auto& block : snapshot->blocks) {
    if (block.scope >= snapshot->scopes.size() ||
        block.values.size() != snapshot->scopes[block.scope].counters.size() ||
        block.label.size() > counter_layout::label_bytes) {
      __builtin_trap();
    }
  }
  for (const auto& ring : snapshot->rings) {
    if (ring.events.size() > ring.capacity) {
      __builtin_trap();
    }
  }
  return 0;
}
