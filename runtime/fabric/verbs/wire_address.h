// The address of an RC queue pair, as it travels in the control stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/fabric/verbs/device.h"

namespace nccl_ha::fabric::verbs {

/// What the peer needs to know.
struct WireAddress {
  LinkLayer link = LinkLayer::ethernet;
  uint32_t queue_pair = 0;       ///< 24 bits
  uint32_t packet_sequence = 0;  ///< 24 bits
  uint16_t lid = 0;
  uint8_t mtu = 3;  ///< verbs' code
  Gid gid{};
  bool has_ece = false;
  uint32_t ece_vendor = 0;
  uint32_t ece_options = 0;
  uint32_t ece_compatibility = 0;
  uint64_t scratch = 0;  ///< where the peer's probes are written
  uint32_t scratch_key = 0;
};
inline constexpr uint32_t wire_number_mask = 0xFFFFFF;
inline constexpr size_t wire_address_bytes = 56;
void encode(const WireAddress& address, std::span<std::byte, wire_address_bytes> out);
/// nullopt: not ours, or impossible values.
std::optional<WireAddress> decode_address(std::span<const std::byte> bytes);

}  // namespace nccl_ha::fabric::verbs
