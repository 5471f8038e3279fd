// Ports that the kernel chooses for sockets of this host.
#pragma once

#include <string>

#include "runtime/base/result.h"

namespace nccl_ha {

/// "net.ipv4.ip_local_port_range is 32768 to 60999".
std::string local_ports_text();

/// Why connect(2), or a bind(2) to any port before it, failed with `error`, an errno value.
Error connect_error(int error);

}  // namespace nccl_ha
