// What hosts tell of themselves, laid side by side.
#pragma once

#include <string>
#include <vector>

#include "tools/check/sheet.h"

namespace nccl_ha::tools {

/// The hosts' names, by rank; those that several have are told apart by their rank.  Pure.
std::vector<std::string> distinct_names(const std::vector<HostSheet>& sheets);

/// What keeps hosts from working together, or takes away what one of them could do: versions,
/// settings, addresses, networks of rails, MTU, speed, clocks.  `names` by rank.  On a mesh cables
/// have networks, MTU and speed, not rails: judge_mesh() looks at these.  Pure.
std::vector<Finding> compare(const std::vector<HostSheet>& sheets,
                             const std::vector<std::string>& names, bool on_mesh = false);

}  // namespace nccl_ha::tools
