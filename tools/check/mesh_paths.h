// Which hosts of a mesh reach each other, and what is in the way of those that do not.
#pragma once

#include <string>
#include <vector>

#include "tools/check/mesh_plan.h"
#include "tools/check/pairs.h"

namespace nccl_ha::tools {

/// Adds to what was found of cables: hosts that do not relay, too many hosts in between, ports that
/// lead to the same host, hosts that no cable joins, another shape than HA_NCCL_MESH_TOPOLOGY
/// names. Pure.
void judge_paths(const MeshPlan& plan, const std::vector<MeshSheet>& sheets,
                 const std::vector<std::string>& names, std::vector<Finding>& found);

/// What the hosts make together.
struct MeshSummary {
  std::string shape;  ///< as in "ring"
  size_t hosts = 0;
  size_t cables = 0;         ///< those that work
  size_t pairs_relayed = 0;  ///< pairs of hosts without a cable that reach each other over others
  std::string relays;        ///< what relays, for people
};
MeshSummary summary_of(const MeshPlan& plan, const std::vector<MeshSheet>& sheets);

}  // namespace nccl_ha::tools
