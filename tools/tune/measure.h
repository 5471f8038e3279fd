// Runs `nccl-ha perf` of one setting against another.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "tools/tune/judge.h"
#include "tools/tune/plan.h"

namespace nccl_ha::tools {

struct TuneLoad {
  std::string program;  ///< nccl-ha itself
  std::string plugin = "ha";
  std::string operation = "all_reduce";
  uint32_t ranks = 2;              ///< local ones
  std::vector<std::string> hosts;  ///< words of perf's that say where ranks run instead; or none
  std::string min_bytes = "64K";
  std::string max_bytes = "4M";
  uint32_t rounds = 7;
  uint64_t iterations = 20;
};

/// One setting measured against another, round by round in turn.
struct TuneTrial {
  std::string axis;
  TunedEnvironment candidate;
  TunedEnvironment against;
  std::vector<double> ratios;  ///< candidate's bandwidth by the other's, over all sizes; per round
  double busbw_gbps = 0;       ///< the candidate's, on average
  std::string failure;         ///< why there are none
  std::string of;              ///< what was measured, and where (load_text)
};

/// All that makes trials comparable: the load, this program's version and the host.
std::string load_text(const TuneLoad& load);

/// A setting that does not work is a trial with a failure, not an error.
TuneTrial measure(const TuneLoad& load, const std::string& axis, const TunedEnvironment& candidate,
                  const TunedEnvironment& against);

/// What was measured before of the same load, from the lines of a file.  Left out are damaged
/// lines, and failures: what did not work may work now.
std::vector<TuneTrial> load_trials(const std::string& path, const std::string& of);
/// Adds a line to it; what went wrong, or empty.
std::string append_trial(const std::string& path, const TuneTrial& trial);

}  // namespace nccl_ha::tools
