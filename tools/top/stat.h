// `nccl-ha stat`: all counters once, for programs.
#pragma once

#include <string>
#include <vector>

#include "tools/top/reading.h"
#include "tools/top/rows.h"
#include "tools/top/sums.h"

namespace nccl_ha::tools {

/// Every counter of every block, in Prometheus's text format.
std::string stat_prometheus(const CounterReading& reading);
/// `unreadable`: files of processes that run, with why they cannot be read.
void print_stat_json(const std::vector<CounterRow>& rows, const SumCheck& sums,
                     const std::vector<std::string>& unreadable);

}  // namespace nccl_ha::tools
