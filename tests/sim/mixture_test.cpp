// The mixture that CI and the long suite run, kind by kind: no guarantee of docs/protocol.md is
// violated, and what each kind is for did happen.
#include <gtest/gtest.h>

#include <utility>

#include "tests/rig/runs/failover_run.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha::test {
namespace {

using rig::FailoverRun;
using rig::FailoverTotals;
using rig::RunKind;

FailoverTotals run_kind(RunKind kind, uint64_t runs) {
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    FailoverRun run = rig::mixed_run(seed);
    run.kind = kind;
    EXPECT_EQ(rig::run_failovers(run, &totals), "") << to_text(kind) << ", seed " << seed;
  }
  return totals;
}

/// All kinds in turn, in parts of which several processors can take one each.
class SimMixturePart : public testing::TestWithParam<uint64_t> {};
constexpr uint64_t parts = 8;

TEST_P(SimMixturePart, ViolatesNoGuarantee) {
  const uint64_t runs = 5 * sim_seeds() / parts;
  const uint64_t first = 1 + GetParam() * runs;
  FailoverTotals totals;
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    const FailoverRun run = rig::mixed_run(seed);
    EXPECT_EQ(rig::run_failovers(run, &totals), "")
        << "nha-sim --seed " << seed << " (" << to_text(run.kind) << ")";
  }
  EXPECT_GT(totals.down, runs);
  if (runs >= 64) {  // which have each kind more than once
    EXPECT_GT(totals.management_cuts, 0U);
    EXPECT_GT(totals.pauses, 0U);
    EXPECT_GT(totals.killed, 0U);
    EXPECT_GT(totals.power_off, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SimMixturePart, testing::Range<uint64_t>(0, parts));

/// Runs that found a fault once: a sender that stayed with a shadow for which the peer, who saw a
/// better one, told no keys.
TEST(SimMixture, SeedsThatFoundSomething) {
  for (const uint64_t seed : {2976, 15131}) {
    FailoverTotals totals;
    FailoverRun run = rig::mixed_run(seed);
    run.together = false;
    EXPECT_EQ(rig::run_failovers(run, &totals), "") << "seed " << seed;
    EXPECT_GT(totals.down, 0U);
  }
}

/// Threads and callers drive in turn, and change hands at any point.
TEST(SimMixture, ThreadsWithCallersThatHelp) {
  const uint64_t runs = sim_seeds();
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    FailoverRun run = rig::mixed_run(seed);
    if (run.kind == RunKind::classic) {
      continue;
    }
    run.callers_help = 0.05;
    EXPECT_EQ(rig::run_failovers(run, &totals), "")
        << "nha-sim --callers-help 0.05 --seed " << seed << " (" << to_text(run.kind) << ")";
  }
  EXPECT_GT(totals.down, runs);
}

/// Three connections where there is one, in the same stream.
TEST(SimMixture, ConnectionsThatShareStreams) {
  const uint64_t runs = sim_seeds();
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    FailoverRun run = rig::mixed_run(seed);
    if (run.kind == RunKind::classic) {
      continue;
    }
    run.sessions = true;
    EXPECT_EQ(rig::run_failovers(run, &totals), "")
        << "nha-sim --sessions --seed " << seed << " (" << to_text(run.kind) << ")";
  }
  EXPECT_GT(totals.down, runs);
  EXPECT_GT(totals.shared_streams, runs / 4) << "too few connections shared a stream";
}

/// In each a worker without a processor, whose callers had nothing to ask for, heard of streams or
/// was waited for without end.
TEST(SimMixture, SeedsWithCallersThatHelpThatFoundSomething) {
  for (const uint64_t seed : {6000080, 6000239, 6000302}) {
    FailoverTotals totals;
    FailoverRun run = rig::mixed_run(seed);
    run.kind = RunKind::pauses;
    run.together = false;
    run.callers_help = 0.2;
    EXPECT_EQ(rig::run_failovers(run, &totals), "") << "seed " << seed;
    EXPECT_GT(totals.starved, 0U);
  }
}

TEST(SimMixture, SettingsDrawnForEachHost) {
  const uint64_t runs = sim_seeds() / 8;
  const FailoverTotals totals = run_kind(RunKind::paths, runs);
  EXPECT_GT(totals.down, runs);
  EXPECT_GT(totals.back, runs);
  EXPECT_GT(totals.cuts_both + totals.cuts_there + totals.cuts_back, runs / 2);
  EXPECT_GT(totals.faults_paired, runs / 4) << "two lanes failed at nearly the same time";
  EXPECT_GT(totals.stood_by, runs / 8);
  if (runs >= 50) {
    EXPECT_GT(totals.rails_at_once, 0U);
    EXPECT_GT(totals.rails_with_records, 0U);
    EXPECT_GT(totals.unequal_mtus, 0U);
  }
}

TEST(SimMixture, ADeathEndsItsConnectionsInTime) {
  const uint64_t runs = sim_seeds() / 4;
  const FailoverTotals totals = run_kind(RunKind::deaths, runs);
  EXPECT_GT(totals.killed, runs / 8);
  EXPECT_GT(totals.power_off, runs / 8);
}

TEST(SimMixture, ManyConnectionsAndProcesses) {
  const uint64_t runs = sim_seeds() / 8;
  const FailoverTotals totals = run_kind(RunKind::crowd, runs);
  EXPECT_GT(totals.down, runs);
  EXPECT_GT(totals.killed + totals.power_off, 0U);
}

TEST(SimMixture, SoManyMessagesThatRingsWrap) {
  const uint64_t runs = sim_seeds() / 8;
  const FailoverTotals totals = run_kind(RunKind::volume, runs);
  EXPECT_GT(totals.groups, runs * 400) << "too few to go round";
  EXPECT_GT(totals.down, runs);
  if (runs >= 50) {
    EXPECT_GT(totals.faults_at_half, 0U) << "no lane failed with a chunk that was half posted";
  }
}

// Each was a violation: acknowledgements and announcements that come when other groups have their
// places, answers that pile up while a process stands still, a device that refuses a flush, a
// stream that is let go before a connection is ready, a standby that only one side had.
TEST(SimMixture, SeedsThatFoundAMistake) {
  const std::pair<RunKind, uint64_t> found[] = {
      {RunKind::volume, 292},     {RunKind::volume, 678},     {RunKind::volume, 2659},
      {RunKind::volume, 5156},    {RunKind::pauses, 847},     {RunKind::devices, 7450},
      {RunKind::crowd, 101410},   {RunKind::pauses, 931762},  {RunKind::pauses, 3039985},
      {RunKind::pauses, 3027404}, {RunKind::closes, 3063967}, {RunKind::pauses, 3087025},
  };
  for (const auto& [kind, seed] : found) {
    FailoverTotals totals;
    FailoverRun run = rig::mixed_run(seed);
    run.kind = kind;
    run.together = false;
    EXPECT_EQ(rig::run_failovers(run, &totals), "")
        << "nha-sim --kind " << to_text(kind) << " --seed " << seed;
  }
}

TEST(SimMixture, ASeedRepeatsExactly) {
  const auto packets = [](uint64_t seed) {
    FailoverTotals totals;
    EXPECT_EQ(rig::run_failovers(rig::mixed_run(seed), &totals), "");
    return totals.packets * 1000003 + static_cast<uint64_t>(totals.simulated.count());
  };
  for (const uint64_t seed : {4, 16, 32, 36}) {
    EXPECT_EQ(packets(seed), packets(seed)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace nccl_ha::test
