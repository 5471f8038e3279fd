// What the kernel does with packets of an interface.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/fabric/interfaces.h"
#include "tools/check/sheet.h"

namespace nccl_ha::tools {

/// The other interface that takes what is sent from an address of this one into its own subnet;
/// empty: there is none, or the plugin can choose the own one.
std::string other_way_out(const fabric::NetInterface& interface);

/// Packets from these interfaces to rails of other hosts that leave by another one.  `own`: the
/// rank of this host's sheet.
std::vector<StrayRoute> stray_routes(const std::vector<fabric::NetInterface>& interfaces,
                                     const std::vector<HostSheet>& sheets, size_t own);

/// Datagrams for which sockets of this network namespace had no room, since it was made.
uint64_t datagrams_without_room();

/// What is in force there.
Ipv4Rules ipv4_rules(const std::string& interface);

}  // namespace nccl_ha::tools
