#include "plugin/connect.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

namespace nccl_ha::plugin {
namespace {

using fabric::IpAddress;
using fabric::NetInterface;

bool is_loopback(const IpAddress& address) {
  if (address.family == 4) {
    return address.bytes[0] == 127;
  }
  return std::all_of(address.bytes.begin(), address.bytes.begin() + 15,
                     [](uint8_t b) { return b == 0; }) &&
         address.bytes[15] == 1;
}

Route make_route(const IpAddress& to, uint16_t port, const IpAddress* from) {
  Route route;
  IpAddress target = to;
  if (from != nullptr) {
    target.scope_id = from->scope_id;
    static_cast<void>(from->to_sockaddr(0, &route.from));
  }
  static_cast<void>(target.to_sockaddr(port, &route.to));
  return route;
}

Result<std::pair<uint32_t, uint32_t>> parse_ports(std::string_view text) {
  const size_t dash = text.find('-');
  auto number = [](std::string_view part) -> int64_t {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc{} && end == part.data() + part.size() ? value : -1;
  };
  const int64_t low = number(text.substr(0, dash));
  const int64_t high = dash == std::string_view::npos ? low : number(text.substr(dash + 1));
  if (low < 0 || high < low || high > 65535 || (low == 0 && high != 0)) {
    return fail(Errc::invalid_argument,
                fmt::format("HA_NCCL_LISTEN_PORTS={}: use a port, a range like 5000-5100, or 0 for "
                            "any",
                            text));
  }
  return std::pair(static_cast<uint32_t>(low), static_cast<uint32_t>(high));
}

/// 0 or an errno value.
int listen_on(const IpAddress& address, uint16_t port, Listening* out) {
  const int fd = socket(address.family == 6 ? AF_INET6 : AF_INET,
                        SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return errno;
  }
  const int on = 1;
  const int off = 0;
  static_cast<void>(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
  if (address.family == 6) {
    static_cast<void>(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
  }
  sockaddr_storage storage{};
  socklen_t length = address.to_sockaddr(port, &storage);
  auto* name = reinterpret_cast<sockaddr*>(&storage);
  if (bind(fd, name, length) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, name, &length) != 0) {
    const int error = errno;
    close(fd);
    return error;
  }
  out->fd = fd;
  out->port = ntohs(storage.ss_family == AF_INET6
                        ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                        : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  return 0;
}

}  // namespace

std::vector<Route> plan_routes(std::span<const NetInterface> devices, size_t device,
                               const Handle& handle) {
  std::vector<const NetInterface*> order;
  order.push_back(&devices[device]);
  for (size_t i = 0; i < devices.size(); ++i) {
    if (i != device) {
      order.push_back(&devices[i]);
    }
  }
  std::vector<Route> routes;
  std::vector<const IpAddress*> shared;
  for (const NetInterface* local : order) {
    for (const IpAddress& to : handle.addresses) {
      for (const IpAddress& from : local->addresses) {
        if (from.family == to.family && from.same_subnet(to)) {
          routes.push_back(make_route(to, handle.port, &from));
          shared.push_back(&to);
        }
      }
    }
  }
  for (const IpAddress& to : handle.addresses) {
    if (std::find(shared.begin(), shared.end(), &to) != shared.end() || is_loopback(to)) {
      continue;
    }
    for (const IpAddress& from : devices[device].addresses) {
      if (from.family == to.family && !is_loopback(from)) {
        routes.push_back(make_route(to, handle.port, &from));
      }
    }
    routes.push_back(make_route(to, handle.port, nullptr));
  }
  return routes;
}

std::vector<IpAddress> handle_addresses(std::span<const NetInterface> devices, size_t device) {
  std::vector<IpAddress> addresses = devices[device].addresses;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (i != device) {
      addresses.insert(addresses.end(), devices[i].addresses.begin(), devices[i].addresses.end());
    }
  }
  return addresses;
}

Result<Listening> open_listener(std::span<const IpAddress> addresses, std::string_view ports) {
  auto range = parse_ports(ports);
  if (!range) {
    return range.error();
  }
  // One address: bind to it alone.  Several: to all of the host's, since peers come in over
  // whichever of them they share a subnet with.
  IpAddress bind_to = addresses.front();
  const bool any6 = std::any_of(addresses.begin(), addresses.end(),
                                [](const IpAddress& a) { return a.family == 6; });
  const bool wildcard = addresses.size() > 1;
  if (wildcard) {
    bind_to = {};
    bind_to.family = any6 ? 6 : 4;
  }
  int error = EADDRINUSE;
  for (uint32_t port = range->first; port <= range->second && error == EADDRINUSE; ++port) {
    Listening listening;
    error = listen_on(bind_to, static_cast<uint16_t>(port), &listening);
    if (error == 0) {
      return listening;
    }
  }
  if (error == EADDRINUSE) {
    return fail(
        Errc::system,
        fmt::format("no free TCP port in HA_NCCL_LISTEN_PORTS={}: widen the range (one port "
                    "per connection being set up is needed) or use 0",
                    ports),
        error);
  }
  return fail(Errc::system, fmt::format("cannot listen on {}", bind_to.text()), error);
}

}  // namespace nccl_ha::plugin
