// The process that starts the ranks, gives them their orders and prints what they measured.
#pragma once

#include <optional>

#include "tools/common/environment.h"
#include "tools/perf/baseline.h"
#include "tools/perf/options.h"

namespace nccl_ha::tools {

/// Runs the whole benchmark.  Forks this host's ranks (one per plugin under a launcher), never
/// waits longer than the options' timeout and a few seconds, and leaves no process behind.
/// Returns the program's exit status: 0 only if every rank finished and every byte was right.
/// SIGINT or SIGTERM ends it with what was measured so far, and 1.  `baseline`: to compare with.
int supervise(const PerfOptions& options, const std::optional<LaunchedRank>& launched,
              std::optional<Baseline> baseline);

}  // namespace nccl_ha::tools
