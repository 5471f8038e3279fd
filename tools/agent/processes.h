// What the processes of this host count, for `nccl-ha top` on another one.
#pragma once

#include <string>

#include "runtime/telemetry/counter_reader.h"

namespace nccl_ha::tools {

/// Counters without flight recorders of the processes that run: a bundle of dumps
/// (tools/trace/sources.h).  What cannot be read is left out, and so is what is beyond 256 MiB.
/// Takes some milliseconds where there are many.
std::string counters_of_processes(const std::string& counters_dir, CounterOwner owner);

}  // namespace nccl_ha::tools
