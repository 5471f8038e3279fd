// Half round-trip times of small messages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "tools/common/net_library.h"
#include "tools/perf/links.h"
#include "tools/perf/transfer.h"

namespace nccl_ha::tools {

struct LatencyOptions {
  uint32_t rank = 0;
  size_t bytes = 8;
  uint32_t depth = 8;  ///< receives posted ahead, as NCCL does
  uint64_t iterations = 10000;
  uint64_t first_iteration = 0;  ///< number of the first one, for the data
  bool check = true;
  bool spin = false;
  bool send_first = false;  ///< waits for a send before it looks for the answer
  Duration pause{};         ///< between round trips: both sides come to rest
  uint64_t seed = 1;
};

/// What rank 0 measured and what either rank found wrong.
struct LatencyResult {
  std::vector<double> half_round_trips_us;  ///< rank 0 only, in order
  double cpu_s = 0;
  CheckResult check;
};

/// Bytes the in and the out buffer need for messages of that size.
size_t latency_buffer_bytes(size_t message_bytes, uint32_t depth);

/// Bounces messages between ranks 0 and 1; both call it.  Filling and checking the data happens
/// outside the measured time.
Result<LatencyResult> run_latency(const NetApi& api, const LatencyOptions& options,
                                  const BufferSet& memory, const LinkSet& links,
                                  const IdleCheck& check);

/// Percentiles as reported.
struct LatencySummary {
  double min_us = 0;
  double p50_us = 0;
  double mean_us = 0;
  double p99_us = 0;
  double max_us = 0;
};
LatencySummary summarize(std::vector<double> samples_us);

/// CPU time of all threads of this process so far, in seconds.
double process_cpu_seconds();

}  // namespace nccl_ha::tools
