#include "tests/rig/runs/totals.h"

#include <algorithm>

namespace nccl_ha::rig {

void FailoverTotals::count(const Channel& channel) {
  const ConnectionCounters& counts = channel.counters();
  down += counts.paths_down.get();
  back += counts.paths_back.get();
  moves += counts.traffic_moves.get();
  stragglers += counts.stragglers_fenced.get();
  chunks_again += counts.chunks_again.get();
  bytes_again += counts.bytes_again.get();
  chunks_kept += counts.chunks_kept.get();
  longest_stall =
      std::max(longest_stall, Duration(static_cast<int64_t>(counts.longest_stall_ns.get())));
}

void FailoverTotals::count(sim::World& world, uint64_t wanted) {
  const sim::Network::Counts& network = world.network().counts();
  packets += network.packets;
  packets_lost += network.dropped;
  packets_doubled += network.duplicated;
  packets_reordered += network.reordered;
  packets_cut += network.cut;
  const sim::Tcp::Counts& tcp = world.network().tcp().counts();
  flows_forgotten += tcp.forgotten;
  resets += tcp.resets;
  timeouts += tcp.timeouts;
  const sim::RdmaNic::Counts& rdma = world.rdma().counts;
  completions_late += rdma.late;
  packets_too_late += rdma.after_error;
  packets += rdma.packets;
  if (wanted != 0 && rdma.bytes_posted >= wanted) {  // all of it was sent
    bytes_replayed += rdma.bytes_posted - wanted;
    bytes_lost += rdma.bytes_posted - rdma.bytes_landed;
  }
  simulated += world.now().time_since_epoch();
}

}  // namespace nccl_ha::rig
