// Which events lanes meet in which states, over runs of the mixture: a pair that is not seen any
// more is one that the simulation has lost sight of.
#include "tests/rig/runs/coverage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/rig/runs/failover_run.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha::test {
namespace {

TEST(SimCoverage, EveryPairOfLaneStateAndEventThatCanBeIsSeenAndNoOther) {
  rig::FailoverTotals totals;
  const uint64_t runs = std::min<uint64_t>(sim_seeds(), 400);
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    static_cast<void>(rig::run_failovers(rig::mixed_run(seed), &totals));
  }
  std::vector<std::string> seen = rig::lane_pairs_seen();
  std::vector<std::string> possible = rig::lane_pairs_possible();
  std::sort(seen.begin(), seen.end());
  std::sort(possible.begin(), possible.end());
  EXPECT_TRUE(std::includes(possible.begin(), possible.end(), seen.begin(), seen.end()));
  if (runs == 400) {  // sanitizers make fewer
    EXPECT_EQ(seen, possible);
  }
}

}  // namespace
}  // namespace nccl_ha::test
