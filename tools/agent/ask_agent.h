// Asks the agent of this host what it knows.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// Waits for at most five seconds.
Result<nlohmann::json> ask_agent(const std::string& directory);
/// The same as a table for a terminal.
void print_agent(const nlohmann::json& status);

}  // namespace nccl_ha::tools
