// An IP address with the length of its network's prefix.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha {

struct IpAddress {
  uint8_t family = 4;  ///< 4 or 6
  uint8_t prefix_len = 0;
  uint32_t scope_id = 0;            ///< IPv6 link-local only
  std::array<uint8_t, 16> bytes{};  ///< the first 4 for IPv4, network order

  bool operator==(const IpAddress&) const = default;
  /// The same address, whatever its prefix.
  bool same_as(const IpAddress& other) const {
    return family == other.family && bytes == other.bytes;
  }
  std::string text() const;
  /// By this address's prefix; false across families.
  bool same_subnet(const IpAddress& other) const;
  bool loopback() const;
  bool link_local() const;  ///< fe80::/10 (RFC 4291)
  /// Without a network that anybody has set up: link-local, or 169.254/16 (RFC 3927).
  bool self_assigned() const;
  /// Fills `out`, returns the length.
  socklen_t to_sockaddr(uint16_t port, sockaddr_storage* out) const;
  static Result<IpAddress> from_sockaddr(const sockaddr* address);
};

/// "10.1.2.3", "fe80::1%eth0" or "[fd00::1]", with the whole address as its prefix.  Behind %
/// stands an interface of this host, or the number of one.
Result<IpAddress> parse_address(std::string_view text);

/// Without the brackets that a host may have around it: "[fd00::1]" as "fd00::1".
std::string_view without_brackets(std::string_view host);

/// Where `own` and `peers` have no address family in common: which has which, and what to do; else
/// empty.
std::string families_apart(std::span<const IpAddress> own, std::span<const IpAddress> peers);

struct HostPort {
  std::string host;  ///< a name or an address, without brackets
  uint16_t port = 0;
};
/// "name:123", "10.1.2.3:123" or "[fe80::1%eth0]:123".
Result<HostPort> parse_host_port(std::string_view text, uint16_t port_max = UINT16_MAX);

/// The same, separated by commas; "": none.
Result<std::vector<IpAddress>> parse_addresses(std::string_view text);

/// ADDRESS/BITS; without BITS the whole address.
Result<IpAddress> parse_address_range(std::string_view text);

}  // namespace nccl_ha
