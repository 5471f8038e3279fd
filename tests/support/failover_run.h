// One simulated run in which paths die, or are only believed to, while packets get lost.
#pragma once

#include <string>

#include "tests/support/sim_pair.h"

namespace nccl_ha::test {

/// What happened in runs; a test asserts that it did.
struct FailoverTotals {
  uint64_t down = 0;
  uint64_t back = 0;
  uint64_t again = 0;
  uint64_t kept = 0;
  uint64_t cut = 0;
  void add(SimPair& pair);
};

/// Settings under which a path is found dead soon.
Config failover_config(int64_t paths);

/// Everything follows from the seed.  `doubts` is the part of the faults that are false verdicts on
/// a living path; the others are cuts in either direction or both.  Empty when every byte was
/// right.
std::string run_failovers(uint64_t seed, double doubts, FailoverTotals* totals);

}  // namespace nccl_ha::test
