// Starting one rank of this program on each of several hosts.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "tools/common/host_list.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace nccl_ha::tools {

struct RemoteOptions {
  std::string list;  ///< --hosts
  std::string file;  ///< --hosts-file
  bool given = false;
  std::vector<NamedHost> hosts;
  std::string shell = "ssh -o BatchMode=yes";  ///< is given the host, `--` and the command
  std::string program;                         ///< path of nccl-ha there
  std::vector<std::string> words;              ///< of the command line, `check` or `perf` first
  uint16_t port = 29400;                       ///< of the first host's rendezvous
  double timeout_s = 600;                      ///< after which all is ended
  bool hold_output =
      false;  ///< what the first says is printed when it has ended, and only if it did
};

/// Adds --hosts, --hosts-file, --ssh, --program and --port.
void add_remote_options(CLI::App& command, RemoteOptions& options);

/// The words of this process's command line behind the program's name, without those options.
std::vector<std::string> words_to_pass_on();

/// What the remote shell is asked to run as rank `rank`.  An error where a word would not survive a
/// remote shell.  Pure but for the environment.
Result<std::vector<std::string>> remote_command(const RemoteOptions& options, size_t rank);

/// Settings of this environment that concern the plugin, as a rank takes them from its standard
/// input: every user of either host can read command lines.
std::string remote_settings();
/// Puts them into this process's environment.  False: they ended early.
bool take_remote_settings(int from);

/// Starts all ranks and waits for their end, at most until the time is up.  What the first says is
/// printed as it is, what others say with their host's name in front.  Gives the exit status of the
/// first; an error names the hosts that were not reached or did not end.  Ranks that are left are
/// ended: they watch their standard input (begin_remote_rank).
Result<int> run_on_hosts(RemoteOptions options);

/// First of all in a rank: where run_on_hosts() started it, tells that it runs, takes its settings,
/// and ends this process when whoever started it is gone.
void begin_remote_rank();

}  // namespace nccl_ha::tools
