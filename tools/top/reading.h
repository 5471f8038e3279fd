// What all processes of this host count, as of one moment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/telemetry/counter_reader.h"

namespace nccl_ha::tools {

struct CounterReading {
  int64_t time_ns = 0;  ///< CLOCK_MONOTONIC
  std::vector<ProcessCounterFile> files;
  std::vector<std::string> unreadable;    ///< files, with why
  std::vector<uint32_t> unreadable_pids;  ///< whose they are
};

/// Of the processes that run, or of those with these numbers, also after they were killed.
Result<CounterReading> read_all_counters(const std::string& counters_dir,
                                         const std::vector<uint32_t>& pids);

/// "host:pid program".
std::string process_text(const CounterSnapshot& snapshot);
/// The value of a counter of a block; 0 when the file has none of that name.
uint64_t value_in(const CounterSnapshot& snapshot, const CounterSnapshot::Block& block,
                  const std::string& counter);

}  // namespace nccl_ha::tools
