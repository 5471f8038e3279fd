#include "runtime/fabric/datagram/wire.h"

#include <cstring>

#include "runtime/fabric/byte_order.h"

namespace nccl_ha::fabric {
namespace {

/// In the place of an IP version.
constexpr uint16_t ud_family = 16;
/// Numbers have 24 bits; 0 and 1 are the fabric's own, all ones means everybody (IBTA 3.2.3).
constexpr bool valid_queue_pair(uint32_t number) { return number > 1 && number < 0xFFFFFF; }

constexpr bool known_type(uint8_t type) {
  return type == static_cast<uint8_t>(FrameType::put) ||
         (type >= static_cast<uint8_t>(FrameType::ack) &&
          type <= static_cast<uint8_t>(FrameType::refuse));
}

constexpr uint8_t known_flags =
    flag_last | flag_immediate | flag_no_speculation | flag_ack | flag_echo | flag_sealed;

void put_socket(std::byte* out, const SocketAddress& address) {
  std::memset(out, 0, 24);
  if (address.is_ud()) {
    const UdAddress& ud = address.ud();
    put<uint16_t>(out, 0, ud_family);
    put<uint16_t>(out, 2, ud.lid);
    put<uint32_t>(out, 4, ud.queue_pair);
    std::memcpy(out + 8, ud.gid.data(), ud.gid.size());
    return;
  }
  put<uint16_t>(out, 2, address.port());
  if (address.storage.ss_family == AF_INET6) {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    put<uint16_t>(out, 0, 6);
    put<uint32_t>(out, 4, in6->sin6_scope_id);
    std::memcpy(out + 8, &in6->sin6_addr, 16);
  } else {
    const auto* in4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    put<uint16_t>(out, 0, 4);
    std::memcpy(out + 8, &in4->sin_addr, 4);
  }
}

bool get_socket(const std::byte* in, SocketAddress* address) {
  *address = {};
  const auto family = get<uint16_t>(in, 0);
  if (family == ud_family) {
    UdAddress ud;
    ud.lid = get<uint16_t>(in, 2);
    ud.queue_pair = get<uint32_t>(in, 4);
    std::memcpy(ud.gid.data(), in + 8, ud.gid.size());
    *address = SocketAddress::from_ud(ud);
    return valid_queue_pair(ud.queue_pair);
  }
  const auto port = get<uint16_t>(in, 2);
  if (port == 0) {
    return false;
  }
  if (family == 4) {
    auto* in4 = reinterpret_cast<sockaddr_in*>(&address->storage);
    in4->sin_family = AF_INET;
    std::memcpy(&in4->sin_addr, in + 8, 4);
    address->length = sizeof(sockaddr_in);
  } else if (family == 6) {
    auto* in6 = reinterpret_cast<sockaddr_in6*>(&address->storage);
    in6->sin6_family = AF_INET6;
    std::memcpy(&in6->sin6_addr, in + 8, 16);
    address->length = sizeof(sockaddr_in6);
    // The peer's scope id names one of its own interfaces; ours comes from the local address.
  } else {
    return false;
  }
  address->set_port(port);
  return true;
}

}  // namespace

void encode(const FrameHeader& header, std::byte* out) {
  put<uint16_t>(out, 0, wire_magic);
  put<uint8_t>(out, 2, static_cast<uint8_t>(header.type));
  put<uint8_t>(out, 3, header.flags);
  put<uint32_t>(out, 4, header.path);
  put<uint64_t>(out, 8, header.token);
  put<uint32_t>(out, 16, header.sequence);
  put<uint32_t>(out, 20, header.acknowledge);
  put<uint16_t>(out, 24, header.credits);
  put<uint16_t>(out, 26, header.ack_delay_us);
  put<uint32_t>(out, 28, header.sent_us);
  put<uint32_t>(out, 32, header.echo_us);
  put<uint16_t>(out, 36, header.payload_length);
  put<uint16_t>(out, 38, header.fragment);
  put<uint32_t>(out, 40, header.fragment_length);
  put<uint32_t>(out, 44, header.fragment_offset);
  put<uint32_t>(out, 48, header.immediate);
  put<uint32_t>(out, 52, header.key);
  put<uint64_t>(out, 56, header.address);
}

std::optional<FrameHeader> decode(std::span<const std::byte> available, size_t total_length) {
  if (available.size() < header_bytes || total_length < header_bytes) {
    return std::nullopt;
  }
  const std::byte* in = available.data();
  const auto type = get<uint8_t>(in, 2);
  if (get<uint16_t>(in, 0) != wire_magic || !known_type(type)) {
    return std::nullopt;
  }
  FrameHeader header;
  header.type = static_cast<FrameType>(type);
  header.flags = get<uint8_t>(in, 3);
  header.path = get<uint32_t>(in, 4);
  header.token = get<uint64_t>(in, 8);
  header.sequence = get<uint32_t>(in, 16);
  header.acknowledge = get<uint32_t>(in, 20);
  header.credits = get<uint16_t>(in, 24);
  header.ack_delay_us = get<uint16_t>(in, 26);
  header.sent_us = get<uint32_t>(in, 28);
  header.echo_us = get<uint32_t>(in, 32);
  header.payload_length = get<uint16_t>(in, 36);
  header.fragment = get<uint16_t>(in, 38);
  header.fragment_length = get<uint32_t>(in, 40);
  header.fragment_offset = get<uint32_t>(in, 44);
  header.immediate = get<uint32_t>(in, 48);
  header.key = get<uint32_t>(in, 52);
  header.address = get<uint64_t>(in, 56);
  if ((header.flags & ~known_flags) != 0 || header.frame_bytes() > total_length) {
    return std::nullopt;
  }
  if (header.type == FrameType::put) {
    const uint64_t end = uint64_t{header.fragment_offset} + header.payload_length;
    const bool last = (header.flags & flag_last) != 0;
    // A segment lies inside its fragment, the last one ends it, and only an empty fragment may
    // have an empty segment: otherwise a receiver could be kept busy for nothing.
    if (end > header.fragment_length || last != (end == header.fragment_length) ||
        (header.payload_length == 0 && header.fragment_length != 0) ||
        header.address + header.fragment_length < header.address) {
      return std::nullopt;
    }
  }
  return header;
}

void encode(const WireAddress& address, std::span<std::byte, wire_address_bytes> out) {
  std::byte* p = out.data();
  put_socket(p, address.command);
  put_socket(p + 24, address.data);
  // Both sockets share the IP address (both queue pairs GID and LID); the second one's address
  // bytes would be redundant, so the remaining fields take the space behind its port.
  put<uint64_t>(p, 28, address.token.told());
  put<uint32_t>(p, 36, address.path);
  put<uint32_t>(p, 40, address.mtu);
  put<uint32_t>(p, 44, address.socket_bytes);
  put<uint32_t>(p, 48, address.window);
  put<uint32_t>(p, 52, address.tiny_bytes);
  std::memset(p + 56, 0, wire_address_bytes - 56);
  if (address.data.is_ud()) {
    put<uint32_t>(p, 56, address.data.ud().queue_pair);
  }
}

std::optional<WireAddress> decode_address(std::span<const std::byte> bytes) {
  WireAddress address;
  if (bytes.size() != wire_address_bytes || !get_socket(bytes.data(), &address.command)) {
    return std::nullopt;
  }
  const std::byte* p = bytes.data();
  address.data = address.command;
  bool data_ok = false;
  if (address.command.is_ud()) {
    UdAddress data = address.command.ud();
    data.queue_pair = get<uint32_t>(p, 56);
    address.data = SocketAddress::from_ud(data);
    data_ok = valid_queue_pair(data.queue_pair);
  } else {
    address.data.set_port(get<uint16_t>(p, 26));
    data_ok = address.data.port() != 0;
  }
  address.token = Secret::heard(get<uint64_t>(p, 28));
  address.path = get<uint32_t>(p, 36);
  address.mtu = get<uint32_t>(p, 40);
  address.socket_bytes = get<uint32_t>(p, 44);
  address.window = get<uint32_t>(p, 48);
  address.tiny_bytes = get<uint32_t>(p, 52);
  const bool window_ok =
      address.window >= 16 && address.window <= 8192 && std::has_single_bit(address.window);
  if (!data_ok || !window_ok || address.mtu < 576 || address.mtu > 65536 ||
      address.socket_bytes < 4096 || address.tiny_bytes < 64 || address.tiny_bytes > 1200) {
    return std::nullopt;
  }
  return address;
}

}  // namespace nccl_ha::fabric
