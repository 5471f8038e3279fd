// nccl-ha info --pid: what a process counts, or has counted until it was killed.
#pragma once

#include <cstdint>
#include <string>

namespace nccl_ha::tools {

/// Prints the counters and the last events of a process that keeps them in `directory`; throws as
/// Refusal does when there are none or they cannot be read.
void show_counters(uint32_t pid, const std::string& directory, bool as_json);

}  // namespace nccl_ha::tools
