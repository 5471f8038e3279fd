// What must hold when the last fault of a simulated run is over, and when its connections are.
//
//   paths stand by   each within the time of docs/shadow-paths.md, and streams    wait_for_paths
//   nothing is left  no actor, queue pair, region, socket or stream                   end
#pragma once

#include <string>

#include "tests/rig/runs/faults.h"

namespace nccl_ha::rig {

class Aftermath {
 public:
  Aftermath(Stage& stage, const PathFaults& paths, const StreamFaults& streams, const Death& death)
      : stage_(stage), paths_(paths), streams_(streams), death_(death) {}
  /// Once all traffic is over.  Empty: every path stands by again, or cannot.
  std::string wait_for_paths();
  /// Closes all connections.  Empty: nothing of them is left.
  std::string end();

 private:
  bool can_stand_by() const;
  uint64_t without_nic() const;
  bool all_stand_by() const;
  bool is_over();
  std::string left_of(const sim::Process& process) const;

  Stage& stage_;
  const PathFaults& paths_;
  const StreamFaults& streams_;
  const Death& death_;
  Instant look_due_{};
};

}  // namespace nccl_ha::rig
