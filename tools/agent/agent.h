// The transport agent of a host: `nccl-ha agent`.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "tools/agent/settings.h"

namespace nccl_ha::tools {

/// Serves until a signal ends it; the exit status.  An error: it could not begin.
Result<int> run_agent(const std::string& settings_path, const AgentSettings& settings);

}  // namespace nccl_ha::tools
