// Addresses of a simulated network.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <utility>

namespace nccl_ha::sim {

/// An IPv4 address in host byte order.
using Ip = uint32_t;
constexpr Ip ip(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return Ip{a} << 24 | Ip{b} << 16 | Ip{c} << 8 | Ip{d};
}

struct Endpoint {
  Ip ip = 0;
  uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
  bool operator<(const Endpoint& other) const {
    return std::pair(ip, port) < std::pair(other.ip, other.port);
  }
  static Endpoint of(const sockaddr* address);
  sockaddr_storage to_sockaddr() const;
};

}  // namespace nccl_ha::sim
