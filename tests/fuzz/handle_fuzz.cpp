// The 128 bytes that come from another rank.
#include <algorithm>
#include <array>
#include <cstdint>

#include "plugin/handle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nccl_ha::plugin;
  std::array<std::byte, handle_bytes> bytes{};
  std::copy_n(reinterpret_cast<const std::byte*>(data), std::min(size, bytes.size()),
              bytes.begin());
  const auto handle = read_handle(bytes);
  if (handle) {
    std::array<std::byte, handle_bytes> again{};
    write_handle(*handle, again);
    const auto second = read_handle(again);
    if (!second || second->nonce != handle->nonce || second->port != handle->port ||
        second->addresses.size() != handle->addresses.size()) {
      __builtin_trap();
    }
  }
  return 0;
}
