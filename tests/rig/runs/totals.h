// What happened in simulated runs; a test asserts that it did.
#pragma once

#include <cstdint>

#include "actors/channel.h"
#include "runtime/base/clock.h"
#include "tests/rig/sim/world.h"

namespace nccl_ha::rig {

struct FailoverTotals {
  // what was done
  uint64_t cuts_both = 0;
  uint64_t cuts_there = 0;  ///< what the sender sends vanishes
  uint64_t cuts_back = 0;
  uint64_t cuts_for_good = 0;     ///< of one rail, both directions
  uint64_t handshakes_cut = 0;    ///< of those cuts, that met a connection as it was made
  uint64_t slow = 0;              ///< rails whose packets took up to 50 ms for a while
  uint64_t ports_down = 0;        ///< RDMA, as the next two: a port lost its link, on one host
  uint64_t ports_down_first = 0;  ///< of those, before a connection began
  uint64_t gids_moved = 0;        ///< an address moved to another place of the GID table
  uint64_t devices_lost = 0;      ///< a device failed for good
  uint64_t devices_hung = 0;      ///< of these, without a word
  uint64_t completions_late = 0;
  uint64_t packets_too_late = 0;  ///< came for a queue pair that was in error or gone
  uint64_t faults_paired = 0;     ///< that met another lane a moment after the one before
  uint64_t faults_at_half = 0;    ///< at the moment at which a chunk was half posted
  uint64_t false_verdicts_sender = 0;
  uint64_t false_verdicts_receiver = 0;
  uint64_t packets = 0;
  uint64_t packets_lost = 0;
  uint64_t packets_doubled = 0;
  uint64_t packets_reordered = 0;
  uint64_t packets_cut = 0;
  uint64_t management_cuts = 0;  ///< of the ways of control streams alone
  uint64_t flows_forgotten = 0;  ///< TCP connections, by middleboxes
  uint64_t resets = 0;           ///< that TCP connections got
  uint64_t timeouts = 0;         ///< TCP connections given up by one end
  uint64_t pauses = 0;           ///< of whole processes
  uint64_t starved = 0;          ///< workers without a processor
  uint64_t callers_away = 0;
  uint64_t killed = 0;          ///< processes
  uint64_t power_off = 0;       ///< hosts
  uint64_t closes = 0;          ///< connections, by either side
  uint64_t shared_streams = 0;  ///< runs that began with fewer control streams than connections
  // what came of it
  uint64_t stood_by = 0;  ///< runs after whose faults every path stood by again
  uint64_t down = 0;      ///< paths given up, counted on each side
  uint64_t back = 0;
  uint64_t moves = 0;       ///< of traffic, to another rail or back
  uint64_t stragglers = 0;  ///< rails fenced off for being slow
  uint64_t chunks_again = 0;
  uint64_t bytes_again = 0;
  uint64_t chunks_kept = 0;
  uint64_t places_found = 0;        ///< for messages, in memory before a completion told of them
  uint64_t groups = 0;              ///< received
  uint64_t rails_at_once = 0;       ///< runs in which two rails of one device carried data
  uint64_t rails_with_records = 0;  ///< of these, those with adaptive routing
  uint64_t unequal_mtus = 0;        ///< runs in which hosts' RDMA ports take packets of two sizes
  // Of runs over nothing but RDMA, as the NICs saw it: bytes of data posted more than once, and
  // bytes that were posted and never came to memory.
  uint64_t bytes_replayed = 0;
  uint64_t bytes_lost = 0;
  Duration longest_stall{};  ///< of a path, from down to back
  Duration longest_death{};  ///< from a death to the last connection that ended for it
  Duration simulated{};

  /// Adds what one side of a connection counted.
  void count(const Channel& channel);
  /// Adds what the network did.  `wanted`: bytes that were to be moved over nothing but RDMA, or 0.
  void count(sim::World& world, uint64_t wanted);
};

}  // namespace nccl_ha::rig
