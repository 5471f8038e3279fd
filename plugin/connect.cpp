#include "plugin/connect.h"

#include <algorithm>

namespace nccl_ha::plugin {
namespace {

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

}  // namespace nccl_ha::plugin
