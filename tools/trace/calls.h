// What a trace says of NCCL's calls: how long requests were queued, and how late NCCL noticed their
// ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/trace/messages.h"
#include "tools/trace/timeline.h"

namespace nccl_ha::tools {

/// Of so many durations.
struct Spread {
  size_t count = 0;
  int64_t p50_ns = 0;
  int64_t p99_ns = 0;
  int64_t most_ns = 0;
};
Spread spread_of(std::vector<int64_t> durations);

/// Requests that wait, at the end of what the process recorded.
struct Waiting {
  size_t count = 0;
  int64_t oldest_ns = 0;  ///< for so long
};

/// The requests of one side of a connection.
struct CallRow {
  std::string process;
  std::string connection;
  size_t requests = 0;  ///< that NCCL asked for, as far as it was recorded
  Spread queued;        ///< until a worker took it up; of receives: announced it to the peer
  Spread unnoticed;     ///< from its end until NCCL was told
  Spread flushes;       ///< from NCCL's call until it was told that it is done
  Waiting not_taken;    ///< NCCL asked for them, and no worker took them up
  Waiting not_noticed;  ///< they are done, and NCCL has not asked since
};

std::vector<CallRow> calls_of(const Timeline& timeline, const std::vector<TraceMessage>& messages);

void print_calls(const std::vector<CallRow>& calls, const NameWidths& widths);

}  // namespace nccl_ha::tools
