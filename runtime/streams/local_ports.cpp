#include "runtime/streams/local_ports.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>

namespace nccl_ha {

std::string local_ports_text() {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  unsigned low = 0;
  unsigned high = 0;
  return file >> low >> high ? fmt::format("net.ipv4.ip_local_port_range is {} to {}", low, high)
                             : std::string("net.ipv4.ip_local_port_range says which there are");
}

Error connect_error(int error) {
  if (error != EADDRINUSE && error != EADDRNOTAVAIL) {
    return fail(Errc::remote, "cannot connect", error);
  }
  return fail(Errc::system,
              fmt::format("cannot connect: this host has no free TCP port ({}); widen that range, "
                          "or see with `ss -tan` who holds its ports",
                          local_ports_text()),
              error);
}

}  // namespace nccl_ha
