// One simulated run in which paths die, or are only believed to, while packets get lost.
#pragma once

#include <functional>
#include <string>

#include "tests/rig/runs/pair.h"
#include "tests/rig/runs/scenario.h"
#include "tests/rig/runs/totals.h"

namespace nccl_ha::rig {

struct FailoverRun {
  uint64_t seed = 1;  ///< everything follows from it
  /// The part of the faults that are false verdicts on a living path; the others are cuts in either
  /// direction or both.
  double suspicions = 0.5;
  std::function<void(const sim::World&)> begins{};  ///< gets the world, which lasts for the run
  std::function<void(const std::string&)> trace{};  ///< is told of each fault; both may be empty
  size_t rails = 1;    ///< 2: a connection has a shadow path, and one rail may go for good
  size_t shadows = 1;  ///< that a connection keeps ready, where there are rails for them
  bool rdma = false;   ///< the rails are RDMA NICs
  bool spare = false;  ///< and there is an interface besides, over which datagrams may take over
  /// The rails are those of one device, of unequal speed, SOUT and SUP or merged, in either mode.
  bool one_device = false;
  /// Others than classic draw rails and NICs themselves.
  RunKind kind = RunKind::classic;
  /// Other kinds than classic: callers drive workers too (sim::World::callers_help).
  double callers_help = 0;
  /// The same: two more connections beside each, and streams that they share.
  bool sessions = false;
  /// Of other kinds than classic: false leaves out what Wanted::together says, so that a seed from
  /// before is the run that it was.
  bool together = true;
  std::string fabric = "mixed";  ///< of other kinds than classic: datagram, rdma, spare, or drawn
};

/// The kinds of run that take turns where nobody chooses.
FailoverRun mixed_run(uint64_t seed);
/// The same among those of kind classic.
FailoverRun classic_run(uint64_t seed);

/// Settings under which a path is found dead soon.
Config failover_config(int64_t paths);

/// Of any kind but classic.
std::string run_scenario(const FailoverRun& run, FailoverTotals* totals);

/// Adds to `totals`.  Empty when every byte was right and everything ended.
std::string run_failovers(const FailoverRun& run, FailoverTotals* totals);

}  // namespace nccl_ha::rig
