// Where the kernel would send a packet.
#pragma once

#include <optional>

#include "runtime/base/ip_address.h"

namespace nccl_ha::fabric {

/// The interface (ifindex) by which the kernel's routes lead from `from`, an address of this host,
/// to `to`; nullopt: none do.  Of rules by source address it takes account.  A link-local address
/// is on each link, so that no route says anything of it.  Any thread; a question to the kernel,
/// which takes microseconds.
std::optional<int> interface_towards(const IpAddress& to, const IpAddress& from);

}  // namespace nccl_ha::fabric
