// Listening TCP sockets for control connections.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/ip_address.h"

namespace nccl_ha {

struct Listening {
  int fd = -1;
  uint16_t port = 0;
};
/// Opens a non-blocking listening socket at that address on a port of `ports` ("0", "5000" or
/// "5000-5100").
Result<Listening> open_listener(const IpAddress& address, std::string_view ports);
/// The same for all addresses of this host.
Result<Listening> open_listener(std::string_view ports);

}  // namespace nccl_ha
