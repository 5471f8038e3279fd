// Findings that are the cause of what pairs of hosts show.
#pragma once

#include <vector>

#include "tools/check/pairs.h"

namespace nccl_ha::tools {

/// Marks the pairs that fail, or of which the plugin warns, on a rail that one of `findings` names.
/// Where pairs fail that finding says so, and is an error.  What a host says of itself comes before
/// what pairs say, so the order of `findings` decides.  `devices` by rank; where pairs are cables a
/// host has none here, and only what concerns all of its rails counts.  Pure.
void explain(std::vector<PairResult>& pairs, const std::vector<HostDevices>& devices,
             const std::vector<Finding*>& findings);

}  // namespace nccl_ha::tools
