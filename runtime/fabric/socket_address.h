// Where a datagram goes, by value: a UDP socket (IPv4 or IPv6), or an RDMA datagram queue pair.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace nccl_ha::fabric {

/// A datagram (UD) queue pair, kept in the place of a socket address.
struct UdAddress {
  sa_family_t family = AF_IB;
  uint16_t lid = 0;  ///< InfiniBand only
  uint32_t queue_pair = 0;
  std::array<uint8_t, 16> gid{};
};
static_assert(sizeof(UdAddress) <= sizeof(sockaddr_storage));

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  /// What is sent there leaves by the NIC of the sender's address, whatever comes first among the
  /// host's routes (PacketIo::egress).
  bool by_own_nic = false;

  static SocketAddress from_ud(const UdAddress& from) {
    SocketAddress made;
    std::memcpy(&made.storage, &from, sizeof from);
    made.length = sizeof from;
    return made;
  }
  bool is_ud() const { return storage.ss_family == AF_IB; }
  const UdAddress& ud() const { return *reinterpret_cast<const UdAddress*>(&storage); }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  uint16_t port() const {
    if (storage.ss_family == AF_INET6) {
      return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
    }
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
  void set_port(uint16_t port) {
    if (storage.ss_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
    } else {
      reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
    }
  }
  bool operator==(const SocketAddress& other) const {
    return length == other.length && by_own_nic == other.by_own_nic &&
           std::memcmp(&storage, &other.storage, length) == 0;
  }
};

/// For logs.
std::string text(const SocketAddress& address);

}  // namespace nccl_ha::fabric
