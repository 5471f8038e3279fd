#include "runtime/base/ip_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace nccl_ha {

std::string IpAddress::text() const {
  char buffer[INET6_ADDRSTRLEN] = "?";
  inet_ntop(family == 6 ? AF_INET6 : AF_INET, bytes.data(), buffer, sizeof buffer);
  return buffer;
}

bool IpAddress::same_subnet(const IpAddress& other) const {
  if (family != other.family) {
    return false;
  }
  for (size_t bit = 0; bit < prefix_len; ++bit) {
    const auto mask = static_cast<uint8_t>(0x80U >> (bit % 8));
    if (((bytes[bit / 8] ^ other.bytes[bit / 8]) & mask) != 0) {
      return false;
    }
  }
  return true;
}

bool IpAddress::loopback() const {
  static constexpr std::array<uint8_t, 16> v6_loopback{0, 0, 0, 0, 0, 0, 0, 0,
                                                       0, 0, 0, 0, 0, 0, 0, 1};
  return family == 6 ? bytes == v6_loopback : bytes[0] == 127;
}

bool IpAddress::link_local() const {
  return family == 6 && bytes[0] == 0xFE && (bytes[1] & 0xC0) == 0x80;
}

bool IpAddress::self_assigned() const {
  return link_local() || (family == 4 && bytes[0] == 169 && bytes[1] == 254);
}

socklen_t IpAddress::to_sockaddr(uint16_t port, sockaddr_storage* out) const {
  *out = {};
  if (family == 6) {
    auto* in6 = reinterpret_cast<sockaddr_in6*>(out);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
    in6->sin6_scope_id = scope_id;
    std::memcpy(&in6->sin6_addr, bytes.data(), 16);
    return sizeof(sockaddr_in6);
  }
  auto* in4 = reinterpret_cast<sockaddr_in*>(out);
  in4->sin_family = AF_INET;
  in4->sin_port = htons(port);
  std::memcpy(&in4->sin_addr, bytes.data(), 4);
  return sizeof(sockaddr_in);
}

Result<IpAddress> IpAddress::from_sockaddr(const sockaddr* address) {
  IpAddress result;
  if (address != nullptr && address->sa_family == AF_INET) {
    const auto* in4 = reinterpret_cast<const sockaddr_in*>(address);
    result.prefix_len = 32;
    std::memcpy(result.bytes.data(), &in4->sin_addr, 4);
    return result;
  }
  if (address != nullptr && address->sa_family == AF_INET6) {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
      // A dual-stack socket shows IPv4 peers and its own IPv4 address this way.
      result.prefix_len = 32;
      std::memcpy(result.bytes.data(), in6->sin6_addr.s6_addr + 12, 4);
      return result;
    }
    result.family = 6;
    result.prefix_len = 128;
    result.scope_id = in6->sin6_scope_id;
    std::memcpy(result.bytes.data(), &in6->sin6_addr, 16);
    return result;
  }
  return fail(Errc::invalid_argument, "not an IP address");
}

Result<IpAddress> parse_address(std::string_view text) {
  const std::string host(text);
  IpAddress address;
  if (inet_pton(AF_INET, host.c_str(), address.bytes.data()) == 1) {
    address.prefix_len = 32;
    return address;
  }
  if (inet_pton(AF_INET6, host.c_str(), address.bytes.data()) == 1) {
    address.family = 6;
    address.prefix_len = 128;
    return address;
  }
  return fail(Errc::invalid_argument, fmt::format("'{}' is no IP address", text));
}

Result<std::vector<IpAddress>> parse_addresses(std::string_view text) {
  std::vector<IpAddress> addresses;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    auto address = parse_address(text.substr(0, comma));
    if (!address) {
      return fail(Errc::invalid_argument,
                  address.error().what + "; write addresses separated by commas");
    }
    addresses.push_back(*address);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return addresses;
}

Result<IpAddress> parse_address_range(std::string_view text) {
  const size_t slash = text.find('/');
  auto range = parse_address(text.substr(0, slash));
  if (!range) {
    return fail(Errc::invalid_argument,
                fmt::format("'{}' is no address range; write it as 192.168.0.0/16", text));
  }
  if (slash != std::string_view::npos) {
    const std::string_view bits = text.substr(slash + 1);
    unsigned value = 0;
    const auto [end, error] = std::from_chars(bits.data(), bits.data() + bits.size(), value);
    if (error != std::errc{} || end != bits.data() + bits.size() || value > range->prefix_len) {
      return fail(Errc::invalid_argument,
                  fmt::format("'{}' is no address range: a prefix of 0..{} bits belongs behind the "
                              "slash",
                              text, range->prefix_len));
    }
    range->prefix_len = static_cast<uint8_t>(value);
  }
  return range;
}

}  // namespace nccl_ha
