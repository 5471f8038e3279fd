// One rank of a run: a process that takes orders and measures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/common/bootstrap.h"
#include "tools/common/shared_barrier.h"
#include "tools/perf/options.h"

namespace nccl_ha::tools {

/// What a rank process gets from the process that forked it.
struct RankSetup {
  PerfOptions options;
  PluginChoice plugin;  ///< the one this rank drives
  World::Options world;
  int channel_fd = -1;               ///< SOCK_SEQPACKET to the forking process; one JSON per packet
  SharedBarrier* barrier = nullptr;  ///< set when all ranks are on this host
  bool all_local = false;
  bool report_progress = false;
};

/// Messages on the channel, as values of their "type" member.
///   rank to parent: ready {plugin, file, abi, device, speed_mbps, hosts}, result {...},
///                   progress {done, of}, failure {text, secondary}
///   parent to rank 0: run {bytes}, stop
inline constexpr size_t channel_packet_max = 65536;

/// Runs the rank to its end; returns the exit status of the process.
int run_rank(const RankSetup& setup);

}  // namespace nccl_ha::tools
