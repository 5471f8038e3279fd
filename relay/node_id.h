// What hosts are called where no cable and no address says it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/ip_address.h"

namespace nccl_ha::relay {

/// A host's name in discovery and routes; wire format.  0: nobody.
enum class NodeId : uint64_t {};

inline constexpr uint64_t number(NodeId id) { return static_cast<uint64_t>(id); }

/// Sixteen hexadecimal digits.
std::string text(NodeId id);

/// Of the host that has these addresses, in any order, and this machine id.  Never 0.
NodeId make_node_id(std::vector<IpAddress> addresses, std::string_view machine_id);
/// Of a host in a topology file, which nobody can ask for its machine id.
NodeId node_id_of_name(std::string_view name);

/// /etc/machine-id (machine-id(5)), or the host's name where there is none.
std::string machine_id();

}  // namespace nccl_ha::relay
