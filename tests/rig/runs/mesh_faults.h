// What goes wrong in a simulated mesh: cables, hosts that relay, their processes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/rig/runs/mesh_stage.h"

namespace nccl_ha::rig {

/// Things that happened.
struct MeshFaultCounts {
  uint64_t cut = 0;          ///< cables, in both directions
  uint64_t pulled = 0;       ///< of them, those of which the hosts at their ends hear
  uint64_t cut_one_way = 0;  ///< in one
  uint64_t for_good = 0;     ///< of those and of hosts, that stayed away
  uint64_t killed = 0;       ///< hosts that relay, without a word
  uint64_t drained = 0;      ///< the same by SIGTERM
  uint64_t paused = 0;       ///< processes that stood still, ends too
  uint64_t added = 0;        ///< cables and hosts that were not there at first
  uint64_t slow = 0;         ///< cables
  void operator+=(const MeshFaultCounts& other);
};

/// What fails comes back within MeshScenario::heals_in, but where each connection has a way without
/// it.
class MeshFaults {
 public:
  explicit MeshFaults(MeshStage& stage);
  /// Each round.
  void step();
  bool over() const { return left_ == 0 && pending_ == 0; }
  bool all_there() const { return pending_ == 0; }
  /// The part of the faults that have happened.
  double happened() const;
  const MeshFaultCounts& counts() const { return counts_; }

 private:
  void happen();
  void choose_next();
  void cut_cable();
  void slow_cable();
  void end_host();
  void pause_host();
  void add_what_is_late();
  Duration soon();
  bool keeps_its_ways(size_t link, const MeshRemains& without) const;
  /// It may stay away as far as the connections are concerned.
  bool may_stay_away(std::vector<bool> MeshRemains::*kind, size_t which);
  void back_later(std::function<void()> what);
  void start_when_ended(size_t host);

  MeshStage& stage_;
  Random random_;
  Random pulls_;            ///< what it draws changes nothing that random_ does
  MeshRemains remains_;     ///< all but what has gone for good, or has not come yet
  std::vector<bool> away_;  ///< cables
  std::vector<bool> busy_;  ///< hosts that are about to end, or away
  size_t left_;
  size_t pending_ = 0;  ///< what will come back
  Instant next_{};
  MeshFaultCounts counts_;
};

}  // namespace nccl_ha::rig
