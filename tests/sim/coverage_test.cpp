// Which events lanes meet in which states, over runs of the mixture: a pair that is not seen any
// more is one that the simulation has lost sight of.
#include "tools/sim/coverage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/sim_seeds.h"
#include "tools/sim/failover_run.h"

namespace nccl_ha::test {
namespace {

TEST(SimCoverage, EveryPairOfLaneStateAndEventThatCanBeIsSeenAndNoOther) {
  tools::FailoverTotals totals;
  const uint64_t runs = std::min<uint64_t>(sim_seeds(), 400);
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    static_cast<void>(tools::run_failovers(tools::mixed_run(seed), &totals));
  }
  std::vector<std::string> seen = tools::lane_pairs_seen();
  std::vector<std::string> possible = tools::lane_pairs_possible();
  std::sort(seen.begin(), seen.end());
  std::sort(possible.begin(), possible.end());
  EXPECT_TRUE(std::includes(possible.begin(), possible.end(), seen.begin(), seen.end()));
  if (runs == 400) {  // sanitizers make fewer
    EXPECT_EQ(seen, possible);
  }
}

}  // namespace
}  // namespace nccl_ha::test
