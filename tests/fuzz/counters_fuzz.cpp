// A file of counters that anybody may have written.
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/telemetry/counter_reader.h"

namespace {

/// A mapping is aligned like this.
struct alignas(64) Line {
  uint8_t bytes[64];
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nccl_ha;
  std::vector<Line> lines((size + sizeof(Line) - 1) / sizeof(Line));
  if (!lines.empty()) {
    std::memcpy(lines.data(), data, size);
  }
  const auto snapshot = parse_counters(std::as_bytes(std::span(lines)).first(size));
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
