// What `nccl-ha tune` tries: one setting after the other, each on top of the best so far.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

namespace nccl_ha::tools {

/// Environment variables with their values.
using TunedEnvironment = std::map<std::string, std::string>;

struct TuneAxis {
  std::string name;  ///< for the table
  std::vector<TunedEnvironment> choices;
};

/// For so many processors that work at the same time, of these numbers (usable_cpus); `rdma`: with
/// what only RDMA has.
std::vector<TuneAxis> tune_axes(size_t processors, std::span<const int> cpus, bool rdma);

/// "A=1 B=2"; "the defaults" of none.
std::string environment_text(const TunedEnvironment& environment);
/// `base` with what `more` sets.
TunedEnvironment merged(const TunedEnvironment& base, const TunedEnvironment& more);

}  // namespace nccl_ha::tools
