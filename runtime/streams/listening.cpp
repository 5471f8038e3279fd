#include "runtime/streams/listening.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/own_fd.h"
#include "runtime/base/port_range.h"
#include "runtime/streams/local_ports.h"

namespace nccl_ha {
namespace {

/// 0 or an errno value.
int listen_on(const IpAddress& address, uint16_t port, Listening* out) {
  const int fd = make_fd([&] {
    return socket(address.family == 6 ? AF_INET6 : AF_INET,
                  SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  });
  if (fd < 0) {
    return errno;
  }
  const int on = 1;
  const int off = 0;
  static_cast<void>(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
  // Also at an address that is not there now: that of an interface which bounces, or is new and has
  // an IPv6 address that is not yet known to be the only one.  Paths and dials wait for it as well.
  if (address.family == 6) {
    static_cast<void>(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
    static_cast<void>(setsockopt(fd, IPPROTO_IPV6, IPV6_FREEBIND, &on, sizeof on));
  } else {
    static_cast<void>(setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof on));
  }
  sockaddr_storage storage{};
  socklen_t length = address.to_sockaddr(port, &storage);
  auto* name = reinterpret_cast<sockaddr*>(&storage);
  if (bind(fd, name, length) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, name, &length) != 0) {
    const int error = errno;
    close_fd(fd);
    return error;
  }
  out->fd = fd;
  out->port = ntohs(storage.ss_family == AF_INET6
                        ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                        : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  return 0;
}

}  // namespace

Result<Listening> open_listener(const IpAddress& address, std::string_view ports) {
  auto range = parse_port_range(ports);
  if (!range) {
    return fail(Errc::invalid_argument,
                fmt::format("HA_NCCL_LISTEN_PORTS={}: {}", ports, range.error().what));
  }
  int error = EADDRINUSE;
  for (uint32_t port = range->low; port <= range->high && error == EADDRINUSE; ++port) {
    Listening listening;
    error = listen_on(address, static_cast<uint16_t>(port), &listening);
    if (error == 0) {
      return listening;
    }
  }
  if (error == EADDRINUSE && range->low == 0) {
    return fail(Errc::system,
                fmt::format("cannot listen: this host has no free TCP port ({}); widen that range, "
                            "or see with `ss -tan` who holds its ports",
                            local_ports_text()),
                error);
  }
  if (error == EADDRINUSE) {
    return fail(
        Errc::system,
        fmt::format("no free TCP port in HA_NCCL_LISTEN_PORTS={}: widen the range (each process "
                    "needs a port for each of its progress threads) or use 0",
                    ports),
        error);
  }
  return fail(Errc::system, fmt::format("cannot listen on {}", address.text()), error);
}

Result<Listening> open_listener(std::string_view ports) {
  IpAddress any{};
  any.family = 6;
  auto both = open_listener(any, ports);
  any.family = 4;  // where the kernel has no IPv6, or none for this process
  return both || both.error().sys == EADDRINUSE ? both : open_listener(any, ports);
}

}  // namespace nccl_ha
