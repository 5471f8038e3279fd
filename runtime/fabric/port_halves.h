// Devices that share a cable: PCI functions behind one port of a NIC, and which port a connection
// uses.  Pure.
//
// A port that is faster than its PCI slots is reached by several functions, each a device with a
// part of its speed: GB10's 200 Gb/s ports are two functions of four lanes each, and multi-host
// adapters have one for each processor.  Who uses one of them has its part only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/fabric/device.h"

namespace nccl_ha::fabric {

/// A port as drivers name it: "p0".  Virtual functions ("pf0vf1") and halves that a driver splits
/// by itself ("p0s1", lanes of their own) are none.
constexpr bool is_port_name(std::string_view name) {
  return name.size() >= 2 && name.front() == 'p' &&
         name.find_first_not_of("0123456789", 1) == std::string_view::npos;
}

/// Both are known to be on the same port, by different PCI functions.
inline bool share_a_port(const NetDevice& one, const NetDevice& other) {
  return one.kind == other.kind && !one.switch_id.empty() && one.switch_id == other.switch_id &&
         is_port_name(one.port_name) && one.port_name == other.port_name && !one.pci_path.empty() &&
         !other.pci_path.empty() && one.pci_path != other.pci_path && one.port == other.port;
}

/// The devices in groups, each in the place of its first one: those that share a port are together,
/// as many as a device may have rails; all others are alone.
inline std::vector<std::vector<size_t>> group_by_port(std::span<const NetDevice> all) {
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return group.size() < rails_per_device_max && share_a_port(all[group.front()], all[i]);
    });
    if (same == groups.end()) {
      groups.push_back({i});
    } else {
      same->push_back(i);
    }
  }
  return groups;
}

/// Of `ports`, which are devices with their rails, the one that has that NIC beneath, which comes
/// first in it, unless its rails are SOUT and SUP; nothing: none has.  For connections that begin
/// where a cable leads to the peer.
inline std::optional<RailDevices> rails_at(std::span<const RailDevices> ports,
                                           std::span<const NetDevice> devices,
                                           std::string_view nic) {
  for (RailDevices port : ports) {
    const std::span rails = std::span(port.devices).first(port.count);
    const auto at = std::find_if(rails.begin(), rails.end(),
                                 [&](size_t rail) { return nic_name(devices[rail]) == nic; });
    if (at != rails.end()) {
      if (!port.sout_and_sup) {
        std::rotate(rails.begin(), at, at + 1);
      }
      return port;
    }
  }
  return std::nullopt;
}

}  // namespace nccl_ha::fabric
