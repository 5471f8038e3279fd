#include "runtime/fabric/verbs/wire_address.h"

#include <algorithm>
#include <cstring>

#include "runtime/fabric/byte_order.h"

namespace nccl_ha::fabric::verbs {
namespace {

constexpr uint16_t wire_magic = 0x5653;  // version 2

}  // namespace

//   0 u16 magic   2 u8 link layer   3 u8 MTU code   4 u32 queue pair   8 u32 first packet number
//  12 u16 LID   14 u16 flags (1: ECE)   16 GID   32 u32 ECE vendor   36 options   40 compatibility
//  44 u32 key of the scratch   48 u64 its address
void encode(const WireAddress& address, std::span<std::byte, wire_address_bytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  put<uint16_t>(out.data(), 0, wire_magic);
  put<uint8_t>(out.data(), 2, static_cast<uint8_t>(address.link));
  put<uint8_t>(out.data(), 3, address.mtu);
  put<uint32_t>(out.data(), 4, address.queue_pair);
  put<uint32_t>(out.data(), 8, address.packet_sequence);
  put<uint16_t>(out.data(), 12, address.lid);
  put<uint16_t>(out.data(), 14, address.has_ece ? 1 : 0);
  std::memcpy(out.data() + 16, address.gid.data(), address.gid.size());
  put<uint32_t>(out.data(), 32, address.ece_vendor);
  put<uint32_t>(out.data(), 36, address.ece_options);
  put<uint32_t>(out.data(), 40, address.ece_compatibility);
  put<uint32_t>(out.data(), 44, address.scratch_key);
  put<uint64_t>(out.data(), 48, address.scratch);
}

std::optional<WireAddress> decode_address(std::span<const std::byte> bytes) {
  if (bytes.size() != wire_address_bytes || get<uint16_t>(bytes.data(), 0) != wire_magic ||
      get<uint16_t>(bytes.data(), 14) > 1) {
    return std::nullopt;
  }
  WireAddress address;
  const auto link = get<uint8_t>(bytes.data(), 2);
  address.mtu = get<uint8_t>(bytes.data(), 3);
  address.queue_pair = get<uint32_t>(bytes.data(), 4);
  address.packet_sequence = get<uint32_t>(bytes.data(), 8);
  if (link < 1 || link > 2 || address.mtu < IBV_MTU_256 || address.mtu > IBV_MTU_4096 ||
      address.queue_pair > wire_number_mask || address.packet_sequence > wire_number_mask) {
    return std::nullopt;
  }
  address.link = static_cast<LinkLayer>(link);
  address.lid = get<uint16_t>(bytes.data(), 12);
  address.has_ece = get<uint16_t>(bytes.data(), 14) == 1;
  std::memcpy(address.gid.data(), bytes.data() + 16, address.gid.size());
  address.ece_vendor = get<uint32_t>(bytes.data(), 32);
  address.ece_options = get<uint32_t>(bytes.data(), 36);
  address.ece_compatibility = get<uint32_t>(bytes.data(), 40);
  address.scratch_key = get<uint32_t>(bytes.data(), 44);
  address.scratch = get<uint64_t>(bytes.data(), 48);
  return address;
}

}  // namespace nccl_ha::fabric::verbs
