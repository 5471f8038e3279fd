// Runs a program as a user would and collects what it says.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace nccl_ha::tests {

/// How a program ended.
struct ToolRun {
  int status = -1;         ///< exit status, or 128 plus the signal
  bool timed_out = false;  ///< it was killed at the limit
  std::string out;
  std::string err;
  std::chrono::duration<double> took{};
};

using Environment = std::vector<std::pair<std::string, std::string>>;

/// Runs `program` with `arguments`; `environment` is added to this process's.  Kills it and all of
/// its process group after `limit`.
ToolRun run_program(const std::string& program, const std::vector<std::string>& arguments,
                    const Environment& environment = {},
                    std::chrono::seconds limit = std::chrono::seconds(120));

/// Path of a program that is built beside the tool.
std::string beside(const std::string& tool, const char* program);

/// For --port and --rendezvous: nobody listens there, nor 17 above, where the first of the ranks
/// that a shell starts does (docs/install.md).  Below the ports that the kernel gives to whoever
/// connects, so that no test that runs meanwhile gets it.
std::string port_to_meet_at();

/// How often `part` is in `text`.
size_t count(const std::string& text, const std::string& part);

}  // namespace nccl_ha::tests
