// Starting one rank of `nccl-ha check` on each of the hosts that a user names.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// A host as the remote shell knows it, and the address at which the others reach it.
struct NamedHost {
  std::string name;
  std::string address;
};

/// Parses "a,b=10.0.0.2": NAME or NAME=ADDRESS, separated by commas.  Pure.
Result<std::vector<NamedHost>> parse_hosts(const std::string& text);

struct RemoteOptions {
  std::vector<NamedHost> hosts;
  std::string shell = "ssh -o BatchMode=yes";  ///< is given the host, `--` and the command
  std::string program;                         ///< path of nccl-ha there
  std::vector<std::string> arguments;          ///< after `check`
  uint16_t port = 29400;                       ///< of the first host's rendezvous
};

/// What the remote shell is asked to run as rank `rank`: settings of this environment that concern
/// the plugin go along.  An error where a word would not survive a remote shell.  Pure but for the
/// environment.
Result<std::vector<std::string>> remote_command(const RemoteOptions& options, size_t rank);

/// Starts all ranks and waits for their end.  What the first says is printed as it is, what others
/// say with their host's name in front.  Gives the exit status: the first rank's, or 2 when a host
/// could not be reached.
Result<int> run_on_hosts(const RemoteOptions& options);

}  // namespace nccl_ha::tools
