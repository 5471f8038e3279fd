// An address with a port, as settings write it.
#pragma once

#include <sys/socket.h>

#include <string>

#include "ha/flow.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/result.h"

namespace nccl_ha::tools {

struct SocketPoint {
  IpAddress address;
  uint16_t port = 0;
  sockaddr_storage to_sockaddr() const;
  std::string text() const;
};
/// "10.0.0.1:7471" or "[fd00::1]:7471".
Result<SocketPoint> parse_point(const std::string& text);

ha::HostAddress host_address(const IpAddress& address);
IpAddress ip_address(const ha::HostAddress& address);
/// Of a datagram's sender; an IPv4 one in IPv6 clothes is IPv4.
Result<IpAddress> sender_address(const sockaddr* from);
std::string text_of(const ha::HostAddress& address);

}  // namespace nccl_ha::tools
