// The 128 bytes that NCCL carries from listen() to the peer's connect().
//
//   0 u32 magic   4 u16 version   6 u16 TCP port   8 u64 nonce
//   16 u8 address count, and 128 where streams to it are sealed (HA_NCCL_KEY_FILE)
//   17 u8 fabric of the listening device
//   18 addresses: u8 length (4 or 16) and so many bytes, the listening device's own first
//   120 u64 scratch: zero on the wire; the connecting side keeps the id of its pending connection
//       there between calls
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/fabric/device.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha::plugin {

inline constexpr size_t handle_bytes = 128;

struct Handle {
  uint16_t port = 0;
  uint64_t nonce = 0;
  fabric::FabricKind fabric{};
  bool sealed = false;
  std::vector<IpAddress> addresses;
};

/// Writes all 128 bytes; addresses beyond the room are left out (the most important come first).
void write_handle(const Handle& handle, std::span<std::byte, handle_bytes> out);
/// nullopt: not one of our handles, or damaged.
std::optional<Handle> read_handle(std::span<const std::byte, handle_bytes> in);

uint64_t handle_scratch(std::span<const std::byte, handle_bytes> in);
void set_handle_scratch(std::span<std::byte, handle_bytes> out, uint64_t value);

}  // namespace nccl_ha::plugin
