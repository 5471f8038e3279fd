// What is wrong with hosts that are cabled without a switch.
#pragma once

#include <string>
#include <vector>

#include "tools/check/mesh_plan.h"
#include "tools/check/pairs.h"

namespace nccl_ha::tools {

/// A mistake is one finding, whatever else comes of it: each cable has one at most, and hosts that
/// do not reach each other are a finding of their own only if no other one explains it.  Sheets and
/// `names` by rank; `tried` as merge() gives it; errors come first.  Pure.
std::vector<Finding> judge_mesh(const MeshPlan& plan, const std::vector<MeshSheet>& sheets,
                                const std::vector<PairResult>& tried,
                                const std::vector<std::string>& names);

}  // namespace nccl_ha::tools
