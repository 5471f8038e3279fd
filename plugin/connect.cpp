#include "plugin/connect.h"

#include <algorithm>

namespace nccl_ha::plugin {
namespace {

using fabric::NetInterface;

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

/// An address that this host has as well, as each has that of its containers' bridge, leads to
/// itself; all of them are those of another process of this host.
std::vector<IpAddress> addresses_of_peer(std::span<const NetInterface> devices,
                                         const std::vector<IpAddress>& told) {
  std::vector<IpAddress> others = told;
  std::erase_if(others, [&](const IpAddress& to) {
    return std::ranges::any_of(devices, [&](const NetInterface& own) {
      return std::ranges::any_of(own.addresses,
                                 [&](const IpAddress& one) { return one.same_as(to); });
    });
  });
  return others.empty() ? told : others;
}

}  // namespace

std::vector<Route> plan_routes(std::span<const NetInterface> devices, size_t device,
                               const Handle& handle, std::span<const NetInterface> all) {
  std::vector<const NetInterface*> order;
  order.push_back(&devices[device]);
  for (size_t i = 0; i < devices.size(); ++i) {
    if (i != device) {
      order.push_back(&devices[i]);
    }
  }
  std::vector<Route> routes;
  std::vector<const IpAddress*> shared;
  const std::vector<IpAddress> peer =
      addresses_of_peer(all.empty() ? devices : all, handle.addresses);
  for (const NetInterface* local : order) {
    for (const IpAddress& to : peer) {
      for (const IpAddress& from : local->addresses) {
        if (from.family == to.family && from.same_subnet(to)) {
          routes.push_back(make_route(to, handle.port, &from));
          shared.push_back(&to);
        }
      }
    }
  }
  for (const IpAddress& to : peer) {
    if (std::find(shared.begin(), shared.end(), &to) != shared.end() || to.loopback()) {
      continue;
    }
    for (const IpAddress& from : devices[device].addresses) {
      if (from.family == to.family && !from.loopback()) {
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

}  // namespace nccl_ha::plugin
