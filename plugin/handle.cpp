#include "plugin/handle.h"

#include <algorithm>
#include <cstring>

namespace nccl_ha::plugin {
namespace {

constexpr uint32_t handle_magic = 0x6C4E4148;
constexpr uint16_t handle_version = 2;
constexpr unsigned flag_sealed = 128;
constexpr size_t fabric_offset = 17;
constexpr size_t addresses_offset = 18;
constexpr size_t scratch_offset = 120;

}  // namespace

void write_handle(const Handle& handle, std::span<std::byte, handle_bytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  std::memcpy(out.data(), &handle_magic, 4);
  std::memcpy(out.data() + 4, &handle_version, 2);
  std::memcpy(out.data() + 6, &handle.port, 2);
  std::memcpy(out.data() + 8, &handle.nonce, 8);
  size_t offset = addresses_offset;
  uint8_t count = 0;
  for (const IpAddress& address : handle.addresses) {
    const size_t length = address.family == 6 ? 16 : 4;
    if (offset + 1 + length > scratch_offset) {
      continue;
    }
    out[offset] = static_cast<std::byte>(length);
    std::memcpy(out.data() + offset + 1, address.bytes.data(), length);
    offset += 1 + length;
    ++count;
  }
  out[16] = static_cast<std::byte>(count | (handle.sealed ? flag_sealed : 0));
  out[fabric_offset] = static_cast<std::byte>(handle.fabric);
}

std::optional<Handle> read_handle(std::span<const std::byte, handle_bytes> in) {
  uint32_t magic = 0;
  uint16_t version = 0;
  Handle handle;
  std::memcpy(&magic, in.data(), 4);
  std::memcpy(&version, in.data() + 4, 2);
  std::memcpy(&handle.port, in.data() + 6, 2);
  std::memcpy(&handle.nonce, in.data() + 8, 8);
  if (magic != handle_magic || version != handle_version || handle.port == 0) {
    return std::nullopt;
  }
  handle.fabric = fabric::FabricKind{std::to_integer<uint8_t>(in[fabric_offset])};
  if (handle.fabric == fabric::FabricKind{}) {
    return std::nullopt;
  }
  size_t offset = addresses_offset;
  handle.sealed = (std::to_integer<unsigned>(in[16]) & flag_sealed) != 0;
  const size_t count = std::to_integer<unsigned>(in[16]) & ~flag_sealed;
  for (size_t i = 0; i < count; ++i) {
    if (offset >= scratch_offset) {
      return std::nullopt;
    }
    const auto length = std::to_integer<size_t>(in[offset]);
    if ((length != 4 && length != 16) || offset + 1 + length > scratch_offset) {
      return std::nullopt;
    }
    IpAddress address{};
    address.family = length == 16 ? 6 : 4;
    address.prefix_len = length == 16 ? 128 : 32;
    std::memcpy(address.bytes.data(), in.data() + offset + 1, length);
    handle.addresses.push_back(address);
    offset += 1 + length;
  }
  return handle.addresses.empty() ? std::nullopt : std::optional(handle);
}

uint64_t handle_scratch(std::span<const std::byte, handle_bytes> in) {
  uint64_t value = 0;
  std::memcpy(&value, in.data() + scratch_offset, sizeof value);
  return value;
}

void set_handle_scratch(std::span<std::byte, handle_bytes> out, uint64_t value) {
  std::memcpy(out.data() + scratch_offset, &value, sizeof value);
}

}  // namespace nccl_ha::plugin
