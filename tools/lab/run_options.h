// The options of a lab that runs a command, and what follows from them, whatever its hosts are made
// of.
#pragma once

#include <string>
#include <vector>

#include "tools/common/refusal.h"
#include "tools/lab/supervisor.h"
#include "tools/lab/topology.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace nccl_ha::tools::lab {

struct RunOptions {
  std::string topology = "pair";
  std::string name;
  std::string on;
  std::vector<std::string> environment;
  std::vector<std::string> script;
  std::vector<std::string> swaps;
  std::vector<std::string> command;
  double timeout_s = 600;
  unsigned mtu = 4200;
  bool quiet = false;
};

/// All of them but the topology.
void add_run_options(CLI::App& command, RunOptions& options);

/// What is wrong with the options is refused.
void swap_cables(Topology& topology, const RunOptions& options, const Refusal& refuse);
SupervisorOptions supervisor_options(const Topology& topology, const RunOptions& options,
                                     const Refusal& refuse);
std::string lab_name(const RunOptions& options, const Topology& topology);

/// In a command, `nccl-ha` means the program beside this one, or this very one, and the plugin `ha`
/// the one beside it.
void put_own_directory_first();

}  // namespace nccl_ha::tools::lab
