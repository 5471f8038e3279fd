#include "tools/agent/socket_point.h"

#include <fmt/format.h>

#include <algorithm>

namespace nccl_ha::tools {
sockaddr_storage SocketPoint::to_sockaddr() const {
  sockaddr_storage storage{};
  address.to_sockaddr(port, &storage);
  return storage;
}

std::string SocketPoint::text() const {
  return address.family == 6 ? fmt::format("[{}]:{}", address.text(), port)
                             : fmt::format("{}:{}", address.text(), port);
}

Result<SocketPoint> parse_point(const std::string& text) {
  const auto point = parse_host_port(text);
  if (!point) {
    return point.error();
  }
  auto address = parse_address(point->host);
  if (!address) {
    return address.error();
  }
  return SocketPoint{*address, point->port};
}

ha::HostAddress host_address(const IpAddress& address) { return {address.family, address.bytes}; }

IpAddress ip_address(const ha::HostAddress& address) {
  IpAddress made;
  made.family = address.family;
  made.prefix_len = address.family == 6 ? 128 : 32;
  made.bytes = address.bytes;
  return made;
}

Result<IpAddress> sender_address(const sockaddr* from) {
  auto address = IpAddress::from_sockaddr(from);
  if (!address) {
    return address;
  }
  constexpr std::array<uint8_t, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (address->family == 6 && std::equal(mapped.begin(), mapped.end(), address->bytes.begin())) {
    IpAddress plain;
    plain.family = 4;
    std::copy(address->bytes.begin() + 12, address->bytes.end(), plain.bytes.begin());
    return plain;
  }
  return address;
}

std::string text_of(const ha::HostAddress& address) {
  return address.family == 0 ? "any" : ip_address(address).text();
}

}  // namespace nccl_ha::tools
