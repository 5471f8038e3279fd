#include "tools/agent/socket_point.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace nccl_ha::tools {
namespace {

Result<IpAddress> parse_ip(const std::string& text) {
  IpAddress address;
  if (inet_pton(AF_INET, text.c_str(), address.bytes.data()) == 1) {
    address.family = 4;
    address.prefix_len = 32;
    return address;
  }
  if (inet_pton(AF_INET6, text.c_str(), address.bytes.data()) == 1) {
    address.family = 6;
    address.prefix_len = 128;
    return address;
  }
  return fail(Errc::invalid_argument, fmt::format("'{}' is no IP address", text));
}

bool parse_whole(const std::string& text, unsigned most, unsigned* out) {
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc{} && at == text.data() + text.size() && *out <= most;
}

}  // namespace

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
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  unsigned port = 0;
  if (colon == std::string::npos || !parse_whole(text.substr(colon + 1), 65535, &port)) {
    return fail(Errc::invalid_argument,
                fmt::format("'{}': an address and a port are needed, as in 127.0.0.1:7471", text));
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  auto address = parse_ip(host);
  if (!address) {
    return address.error();
  }
  return SocketPoint{*address, static_cast<uint16_t>(port)};
}

Result<IpAddress> parse_network(const std::string& text) {
  const size_t slash = text.find('/');
  auto address = parse_ip(text.substr(0, slash));
  if (!address || slash == std::string::npos) {
    return address;
  }
  unsigned length = 0;
  if (!parse_whole(text.substr(slash + 1), address->prefix_len, &length)) {
    return fail(Errc::invalid_argument, fmt::format("'{}': the prefix is no length", text));
  }
  address->prefix_len = static_cast<uint8_t>(length);
  return address;
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
