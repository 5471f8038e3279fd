#include "runtime/base/ip_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace nccl_ha {
namespace {

bool link_local_bytes(const std::array<uint8_t, 16>& bytes) {
  return bytes[0] == 0xFE && (bytes[1] & 0xC0) == 0x80;
}

bool parse_number(std::string_view text, uint32_t most, uint32_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc{} && end == text.data() + text.size() && *out <= most;
}

}  // namespace

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

bool IpAddress::link_local() const { return family == 6 && link_local_bytes(bytes); }

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
  const std::string_view bare = without_brackets(text);
  const size_t percent = bare.find('%');
  const std::string host(bare.substr(0, percent));
  const std::string zone(percent == std::string_view::npos ? "" : bare.substr(percent + 1));
  IpAddress address;
  if (percent == std::string_view::npos && bare.size() == text.size() &&
      inet_pton(AF_INET, host.c_str(), address.bytes.data()) == 1) {
    address.prefix_len = 32;
    return address;
  }
  if (inet_pton(AF_INET6, host.c_str(), address.bytes.data()) != 1 ||
      (percent != std::string_view::npos && (zone.empty() || !link_local_bytes(address.bytes)))) {
    return fail(Errc::invalid_argument, fmt::format("'{}' is no IP address", text));
  }
  address.family = 6;
  address.prefix_len = 128;
  if (!zone.empty() && !parse_number(zone, UINT32_MAX, &address.scope_id)) {
    address.scope_id = if_nametoindex(zone.c_str());
    if (address.scope_id == 0) {
      return fail(Errc::invalid_argument,
                  fmt::format("'{}': this host has no interface '{}'", text, zone));
    }
  }
  return address;
}

std::string_view without_brackets(std::string_view host) {
  return host.size() > 2 && host.starts_with('[') && host.ends_with(']')
             ? host.substr(1, host.size() - 2)
             : host;
}

std::string families_apart(std::span<const IpAddress> own, std::span<const IpAddress> peers) {
  const auto any_like = [&](const IpAddress& one) {
    return std::any_of(peers.begin(), peers.end(),
                       [&](const IpAddress& other) { return other.family == one.family; });
  };
  if (own.empty() || peers.empty() || std::any_of(own.begin(), own.end(), any_like)) {
    return "";
  }
  return fmt::format(
      "this host uses IPv{} only ({}) and the peer IPv{} only ({}): give both an address of one "
      "family, or set NCCL_SOCKET_FAMILY (AF_INET or AF_INET6) alike on both",
      own.front().family, own.front().text(), peers.front().family, peers.front().text());
}

Result<HostPort> parse_host_port(std::string_view text, uint16_t port_max) {
  const size_t colon = text.rfind(':');
  const std::string_view host = without_brackets(text.substr(0, colon));
  if (colon == std::string_view::npos || host.empty() ||
      host.find_first_of("[]") != std::string_view::npos) {
    return fail(Errc::invalid_argument,
                fmt::format("'{}' is not of the form HOST:PORT, as in 10.0.0.1:7471 or "
                            "[fd00::1]:7471",
                            text));
  }
  uint32_t port = 0;
  if (!parse_number(text.substr(colon + 1), port_max, &port)) {
    return fail(Errc::invalid_argument,
                fmt::format("'{}': the port is not a number from 0 to {}", text, port_max));
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
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
    uint32_t value = 0;
    if (!parse_number(bits, range->prefix_len, &value)) {
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
