// Finding out whether a launcher (MPI, Slurm, torchrun) started this process as one of many ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// Looks up one environment variable; tests pass a table.
using GetEnv = std::function<std::optional<std::string>(const std::string&)>;
/// The process environment.
GetEnv process_environment();

/// The place of this process among the ranks a launcher started.
struct LaunchedRank {
  std::string launcher;  ///< "Open MPI", "MPI (PMI)", "Slurm" or "torchrun"
  uint32_t rank = 0;
  uint32_t world_size = 1;
  uint32_t local_rank = 0;
  uint32_t local_size = 0;  ///< 0: unknown
  std::string host;         ///< where rank 0 can be reached
  uint16_t port = 0;        ///< and on which TCP port
};

/// Nothing when no launcher is recognised: ranks are then forked locally.  `rendezvous` (HOST:PORT,
/// from the command line) wins over what the environment says, and without a launcher is an error.
/// A launcher that names no address of rank 0 while ranks are spread over hosts is an error that
/// says to pass one.
Result<std::optional<LaunchedRank>> detect_launcher(const GetEnv& get,
                                                    const std::string& rendezvous);

/// First host of a Slurm node list: "gpu[03-05,9],x1" gives "gpu03".
std::string first_slurm_host(const std::string& list);

}  // namespace nccl_ha::tools
