// `nccl-ha trace summary`: what the events say all together.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/trace/calls.h"
#include "tools/trace/messages.h"
#include "tools/trace/stalls.h"
#include "tools/trace/timeline.h"

namespace nccl_ha::tools {

struct LatencyRow {
  std::string process;
  std::string connection;
  std::string path;
  uint64_t size_at_least = 0;  ///< bytes of a chunk; the class ends below twice as many
  size_t count = 0;
  int64_t p50_ns = 0;  ///< from posting to acknowledgement
  int64_t p90_ns = 0;
  int64_t p99_ns = 0;
  int64_t most_ns = 0;
};

struct PathTime {
  std::string process;
  std::string connection;
  std::string path;
  int64_t up_ns = 0;
  int64_t down_ns = 0;
  size_t failures = 0;
  uint64_t bytes = 0;  ///< acknowledged at a sender, arrived at a receiver
};

struct ThreadTime {
  std::string process;
  std::string thread;
  bool caller = false;
  size_t events = 0;
  uint64_t lost = 0;  ///< events that were overwritten before
  int64_t span_ns = 0;
  int64_t asleep_ns = 0;
  size_t resent = 0;  ///< segments
};

/// The steps of one failover on one side.
struct RoundSummary {
  int32_t connection = -1;
  uint32_t path = 0;
  int64_t begin_ns = 0;
  std::string steps;  ///< "taken_down, work_back +12 us, ..."
};

struct TraceSummary {
  std::vector<LatencyRow> latencies;
  std::vector<PathTime> paths;
  std::vector<ThreadTime> threads;
  std::vector<CallRow> calls;
  std::vector<TraceStall> stalls;
  std::vector<RoundSummary> rounds;
  uint64_t chunks_again = 0;
  uint64_t bytes_again = 0;
};

TraceSummary summarize(const Timeline& timeline, int64_t stall_ns);

void print_summary(const Timeline& timeline, const TraceSummary& summary);
void print_summary_json(const Timeline& timeline, const TraceSummary& summary);

/// The value below which that part of the sorted values lies (nearest rank); 0 of none.
int64_t nearest_rank(const std::vector<int64_t>& sorted, double part);

}  // namespace nccl_ha::tools
