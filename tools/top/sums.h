// Counters of different parts that must come to the same.
#pragma once

#include <string>
#include <vector>

#include "tools/top/reading.h"

namespace nccl_ha::tools {

struct SumCheck {
  size_t checked = 0;
  std::vector<std::string> wrong;  ///< one line each
};

/// Two readings: what changed between them was being written, and says nothing.
///   a receiver's bytes are those of its paths;
///   a sender with nothing under way has sent over its paths what it began and what went again;
///   no path has more completions than writes.
SumCheck check_sums(const CounterReading& now, const CounterReading& before);

}  // namespace nccl_ha::tools
