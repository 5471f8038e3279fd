// One simulated run over a mesh that changes, with discovery, routes, relays and connections as
// they are.
//
//   once and in order, no late write, no late read, no failure while ways are left      Traffic
//   no loop             a session is in no relay twice, and has no more hosts than allowed  here
//   no hang             every run ends, and so does every session once connections have     here
//   no leak             relays have all of their memory and limits back then                here
//   neighbours          who is at the other end of a cable that works is known in time      here
#pragma once

#include <functional>
#include <string>

#include "tests/rig/runs/mesh_faults.h"
#include "tests/rig/runs/totals.h"

namespace nccl_ha::rig {

struct MeshRun {
  uint64_t seed = 1;                                ///< everything follows from it
  std::function<void(const sim::World&)> begins{};  ///< gets the world, which lasts for the run
  std::function<void(const std::string&)> trace{};  ///< is told of each fault; both may be empty
};

struct MeshTotals {
  uint64_t hosts = 0;
  uint64_t hosts_most = 0;
  uint64_t connections = 0;
  MeshStage::Seen seen;
  uint64_t loaded = 0;       ///< meshes
  uint64_t with_key = 0;     ///< meshes
  uint64_t fewer_slots = 0;  ///< looks at which a path had fewer than it asked for
  uint64_t shared_turns =
      0;  ///< looks at which several paths waited for their turns at one way out
  MeshFaultCounts faults;
  FailoverTotals failovers;
  uint64_t trace = 0;  ///< of the last run: equal runs have equal ones
};

/// Adds to `totals`.  Empty when every byte was right and everything ended.
std::string run_mesh(const MeshRun& run, MeshTotals* totals);

}  // namespace nccl_ha::rig
