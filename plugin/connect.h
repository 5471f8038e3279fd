// Choosing addresses: what a handle names and how a connector reaches its peer.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "actors/route.h"
#include "plugin/handle.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha::plugin {

/// All ways from here to the peer, best first: an address on a subnet that the requested device
/// shares, then one shared with another of our devices, then whatever the routing table finds.
/// `all`: whose addresses are this host's, also where nobody is dialled from there; empty: those of
/// `devices`.
std::vector<Route> plan_routes(std::span<const fabric::NetInterface> devices, size_t device,
                               const Handle& handle,
                               std::span<const fabric::NetInterface> all = {});

/// The addresses a handle for `device` carries: the device's own, then those of the others.
std::vector<IpAddress> handle_addresses(std::span<const fabric::NetInterface> devices,
                                        size_t device);

}  // namespace nccl_ha::plugin
