// Meshes that change while connections carry data (nha-sim --mesh).
#include <gtest/gtest.h>

#include "tests/rig/runs/mesh_run.h"
#include "tests/support/log_lines.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

std::string run_seed(uint64_t seed, rig::MeshTotals& totals) {
  rig::MeshRun run;
  run.seed = seed;
  return rig::run_mesh(run, &totals);
}

TEST(Mesh, EveryByteIsRightWhateverHappensToCablesAndHosts) {
  const ErrorsOnly quiet;
  rig::MeshTotals totals;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    EXPECT_EQ(run_seed(seed, totals), "") << "nha-sim --mesh --seed " << seed;
  }
  EXPECT_GT(totals.hosts_most, 10U);
  EXPECT_GT(totals.seen.over_relays, 0U);
  EXPECT_GT(totals.seen.both_ways, 0U);
  EXPECT_GT(totals.seen.bytes, 0U);
  EXPECT_GT(totals.seen.ways_refused, 0U) << "each path came about over the first way";
  EXPECT_GT(totals.with_key, 0U);
  EXPECT_GT(totals.loaded, 0U);
  EXPECT_GT(totals.seen.held_back, 0U) << "no limit of what is under way was reached";
  EXPECT_GT(totals.seen.stalls, 0U) << "nothing stalled";
  EXPECT_GT(totals.fewer_slots, 0U) << "no pool of memory was short";
  EXPECT_GT(totals.shared_turns, 0U) << "nobody waited for a turn";
  EXPECT_GT(totals.failovers.down, 0U);
  EXPECT_GT(totals.failovers.back, 0U);
  for (const uint64_t happened :
       {totals.faults.cut, totals.faults.pulled, totals.faults.cut_one_way, totals.faults.for_good,
        totals.faults.killed, totals.faults.drained, totals.faults.paused, totals.faults.added,
        totals.faults.slow}) {
    EXPECT_GT(happened, 0U);
  }
}

/// In both a cable is slow, and whole messages wait in four to six hosts: longer than a path may be
/// silent that has another one beside it.
TEST(Mesh, AWayThatIsSlowIsNotGivenUpForEver) {
  const ErrorsOnly quiet;
  for (const uint64_t seed : {5511, 5899}) {
    rig::MeshTotals totals;
    EXPECT_EQ(run_seed(seed, totals), "") << "nha-sim --mesh --seed " << seed;
    EXPECT_LT(totals.failovers.down, 100U) << seed;
  }
}

/// A cable is cut in one direction between the decision for it and the stream over it: what dials
/// hears nothing, and discovery learns of it later.
TEST(Mesh, AConnectionWhoseCableIsCutBeforeItsStreamGoesOverRelays) {
  for (const uint64_t seed : {14073, 14425, 14624}) {
    const LogLines log;
    rig::MeshTotals totals;
    EXPECT_EQ(run_seed(seed, totals), "") << "nha-sim --mesh --seed " << seed;
    EXPECT_GE(log.count("any more: its connection goes over relays"), 1U) << seed;
  }
}

TEST(Mesh, ASeedRepeatsExactly) {
  const ErrorsOnly quiet;
  rig::MeshTotals one;
  rig::MeshTotals other;
  EXPECT_EQ(run_seed(7, one), run_seed(7, other));
  EXPECT_EQ(one.trace, other.trace);
  EXPECT_EQ(one.failovers.packets, other.failovers.packets);
}

}  // namespace
}  // namespace nccl_ha::test
