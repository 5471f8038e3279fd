// Hosts without a switch as a command of this host can know them.
#pragma once

#include <string>
#include <vector>

#include "relay/topology.h"
#include "runtime/base/config.h"
#include "runtime/base/instant.h"
#include "runtime/base/result.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha::tools {

/// What is known, and how it came.
struct MeshSight {
  relay::Topology topology;
  relay::NodeId self{};
  std::string source;
};

/// From the topology file if there is one, else from the relay node of this host, else found out
/// now, which takes at most `wait`.  `all`: the interfaces of this host.
Result<MeshSight> look_at_mesh(const Config& config, const std::vector<fabric::NetInterface>& all,
                               Duration wait);
/// Only if the relay node of this host knows; nothing is begun.
Result<MeshSight> ask_for_mesh(const Config& config);

}  // namespace nccl_ha::tools
