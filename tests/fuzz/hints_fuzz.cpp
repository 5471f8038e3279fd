// A table of hints that anybody may have written: its header decides whether it is mapped.
#include <cstdint>
#include <cstring>
#include <span>

#include "runtime/telemetry/hint_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nccl_ha;
  const auto bytes = std::as_bytes(std::span(data, size));
  if (check_hint_header(bytes, size)) {
    uint32_t slots = 0;
    std::memcpy(&slots, data + offsetof(hint_layout::FileHeader, slots), sizeof slots);
    // Each slot that a reader takes for one lies within the file.
    if (sizeof(hint_layout::FileHeader) + size_t{slots} * sizeof(hint_layout::Slot) > size) {
      __builtin_trap();
    }
  }
  return 0;
}
