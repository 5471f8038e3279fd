// What every simulated run must keep, by the guarantees of docs/protocol.md.
//
//   once and in order   every byte right, sizes as sent, each request done once      Traffic
//   no late write       buffers stay as they are once their receive is done          Traffic
//   no late read        sources are scribbled over once their send is done           Traffic
//   no failure          while paths work or come back within the budget              Traffic
//   bounded end         a dead peer ends a connection within a stated time           here
//   nobody else         other connections do not notice a death                      here
//   no false verdict    processes that merely stood still cost no path               here
//   no livelock         time goes on, and every run ends                             here
#pragma once

#include <string>

#include "tests/rig/runs/faults.h"

namespace nccl_ha::rig {

class Oracle {
 public:
  Oracle(Stage& stage, const PathFaults& paths, const Pauses& pauses, const Death& death)
      : stage_(stage), paths_(paths), pauses_(pauses), death_(death) {}
  /// Each round.  False: there is a violation.
  bool step();
  /// All that a death was to end has ended.
  bool death_is_over() const { return !death_.at() || death_over_; }
  /// At the end; empty: all was right.
  std::string verdict(bool ended);

 private:
  void look_at_death();
  Duration death_bound(const SimLink& link, bool sender) const;
  std::string false_verdicts() const;
  std::string faults() const;
  std::string look_at_link(size_t link, bool unfinished) const;

  Stage& stage_;
  const PathFaults& paths_;
  const Pauses& pauses_;
  const Death& death_;
  bool death_over_ = false;
  std::string wrong_;
};

}  // namespace nccl_ha::rig
