// `nccl-ha trace critical`: which rank and which path held a collective up.
//
// From the last completion back: a completion waited for the last chunk that arrived, that for its
// path since it was posted, the post for the latest of what its process had to have before: a
// receive, or the announcement of where it goes.  The time of each step belongs to a path or to a
// process.  What takes much of that way and much longer than its like stands out.  Steps between
// hosts are only as exact as their clocks are known: where that is worse than a step, nothing is
// said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/trace/messages.h"
#include "tools/trace/timeline.h"

namespace nccl_ha::tools {

struct CriticalLimits {
  double share = 0.15;      ///< of the way that a culprit has at least
  double factor = 1.5;      ///< and how many times the median of the others on the way that is
  double slower = 3;        ///< and how many times the median of the others its chunks take
  double rank_share = 0.6;  ///< the same of a process: on a busy host some wait for a processor
  double rank_factor = 4;
  size_t chunks_min = 16;  ///< paths with fewer say nothing; and so many in a row must be slow
};

/// A path with its time on the way, and how long its chunks take in general.
struct CriticalPath {
  std::string from;  ///< process
  std::string to;
  std::string path;
  int64_t time_ns = 0;
  size_t chunks = 0;
  int64_t median_ns = 0;     ///< from posting to acknowledgement
  double times_others = 0;   ///< that, by the median of the other paths
  int64_t sustained_ns = 0;  ///< the largest median of chunks_min in a row
  double sustained_others = 0;
  double way_others = 0;  ///< `time_ns`, by the median of those that are on the way; 0: none is
};
struct CriticalRank {
  std::string process;
  int64_t time_ns = 0;  ///< on the way, between what it had to have and what it did then
  int64_t gaps_ns = 0;  ///< the same of all its sends meanwhile, also off the way
};

struct CriticalResult {
  int64_t span_ns = 0;              ///< of the way, all together
  std::vector<CriticalPath> paths;  ///< those with the most time come first
  std::vector<CriticalRank> ranks;
  size_t steps = 0;
  std::string verdict;  ///< empty: nothing stands out, or
  std::string unsure;   ///< why nothing can be said
};

CriticalResult critical_of(const Timeline& timeline, const CriticalLimits& limits = {});
void print_critical(const CriticalResult& result);
void print_critical_json(const Timeline& timeline, const CriticalResult& result);

}  // namespace nccl_ha::tools
