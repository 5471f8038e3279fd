// One simulated run in which paths die, or are only believed to, while packets get lost.
#pragma once

#include <functional>
#include <string>

#include "tools/sim/pair.h"

namespace nccl_ha::tools {

/// What happened in runs; a test asserts that it did.
struct FailoverTotals {
  // what was done
  uint64_t cuts_both = 0;
  uint64_t cuts_there = 0;  ///< what the sender sends vanishes
  uint64_t cuts_back = 0;
  uint64_t cuts_for_good = 0;   ///< of one rail, both directions
  uint64_t handshakes_cut = 0;  ///< of those cuts, that met a connection as it was made
  uint64_t slow = 0;            ///< rails whose packets took up to 50 ms for a while
  uint64_t ports_down = 0;      ///< RDMA, as the next two: a port lost its link, on one host
  uint64_t gids_moved = 0;      ///< an address moved to another place of the GID table
  uint64_t devices_lost = 0;    ///< a device failed for good
  uint64_t completions_late = 0;
  uint64_t packets_too_late = 0;  ///< came for a queue pair that was in error or gone
  uint64_t false_verdicts_sender = 0;
  uint64_t false_verdicts_receiver = 0;
  uint64_t packets = 0;
  uint64_t packets_lost = 0;
  uint64_t packets_doubled = 0;
  uint64_t packets_reordered = 0;
  uint64_t packets_cut = 0;
  // what came of it
  uint64_t down = 0;  ///< paths given up, counted on each side
  uint64_t back = 0;
  uint64_t moves = 0;  ///< of traffic, to another rail or back
  uint64_t chunks_again = 0;
  uint64_t bytes_again = 0;
  uint64_t chunks_kept = 0;
  uint64_t places_found = 0;  ///< for messages, in memory before a completion told of them
  // Of runs over nothing but RDMA, as the NICs saw it: bytes of data posted more than once, and
  // bytes that were posted and never came to memory.
  uint64_t bytes_replayed = 0;
  uint64_t bytes_lost = 0;
  Duration longest_stall{};  ///< of a path, from down to back
  Duration simulated{};
};

struct FailoverRun {
  uint64_t seed = 1;  ///< everything follows from it
  /// The part of the faults that are false verdicts on a living path; the others are cuts in either
  /// direction or both.
  double doubts = 0.5;
  std::function<void(const sim::World&)> begins{};  ///< gets the world, which lasts for the run
  std::function<void(const std::string&)> trace{};  ///< is told of each fault; both may be empty
  size_t rails = 1;    ///< 2: a connection has a shadow path, and one rail may go for good
  bool rdma = false;   ///< the rails are RDMA NICs
  bool spare = false;  ///< and there is an interface besides, over which datagrams may stand in
};

/// The kinds of run that take turns where nobody chooses.
FailoverRun mixed_run(uint64_t seed);

/// Settings under which a path is found dead soon.
Config failover_config(int64_t paths);

/// Adds to `totals`.  Empty when every byte was right and everything ended.
std::string run_failovers(const FailoverRun& run, FailoverTotals* totals);

}  // namespace nccl_ha::tools
