// What keeps a job's processes on a host from what they need of it.
#pragma once

#include <vector>

#include "tools/check/findings.h"

namespace nccl_ha::tools {

/// NCCL's variables and the library that it would load, limits of the process, folders.  Pure.
std::vector<Finding> judge_job(const HostFacts& facts, const Demands& demands);

}  // namespace nccl_ha::tools
