#include "actors/cable_ports.h"

#include <algorithm>
#include <span>

#include "runtime/base/ip_address.h"
#include "runtime/fabric/interfaces.h"
#include "runtime/fabric/port_halves.h"

namespace nccl_ha {
namespace {

/// Streams of this device begin at its own NIC, and not at one that serves them all.
bool begins_there(const std::vector<fabric::NetInterface>& interfaces,
                  const fabric::NetDevice& device) {
  return device.control_interface < interfaces.size() &&
         interfaces[device.control_interface].name == fabric::nic_name(device);
}

/// The NIC of `rail` is in the network of `stream`'s address `local`, or nobody knows where it is.
bool leads_there(const std::vector<fabric::NetInterface>& interfaces, const fabric::NetDevice& rail,
                 const fabric::NetInterface& stream, const IpAddress& local) {
  const std::string& nic = fabric::nic_name(rail);
  if (nic == stream.name) {
    return true;
  }
  const auto own = std::find_if(interfaces.begin(), interfaces.end(),
                                [&](const fabric::NetInterface& one) { return one.name == nic; });
  if (own == interfaces.end() || own->addresses.empty()) {
    return true;
  }
  // Link-local networks look alike on each cable.
  return !local.link_local() &&
         std::any_of(own->addresses.begin(), own->addresses.end(),
                     [&](const IpAddress& one) { return one.same_subnet(local); });
}

}  // namespace

fabric::RailDevices CablePorts::of_stream(const fabric::Provider& provider,
                                          const fabric::RailDevices& asked,
                                          const sockaddr_storage& local) const {
  const auto interfaces = provider.interfaces();
  const auto* at = reinterpret_cast<const sockaddr*>(&local);
  const auto nic = devices.empty() ? std::nullopt : fabric::find_interface(*interfaces, at);
  const auto address = IpAddress::from_sockaddr(at);
  if (!nic || !address) {
    return asked;
  }
  const fabric::NetInterface& stream = (*interfaces)[*nic];
  const std::span rails = std::span(asked.devices).first(asked.count);
  const bool in_its_network = std::any_of(rails.begin(), rails.end(), [&](size_t rail) {
    return leads_there(*interfaces, provider.devices()[rail], stream, *address);
  });
  const bool tells = streams_tell && begins_there(*interfaces, provider.devices()[asked.first()]);
  if (!in_mesh() && (!tells || in_its_network)) {
    return asked;
  }
  return fabric::rails_at(devices, provider.devices(), stream.name).value_or(asked);
}

}  // namespace nccl_ha
