// Commands on the hosts of a lab that are cabled without a switch.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {

/// What `nccl-ha perf` says at its end when every element of every size was right.
inline constexpr const char* all_bytes_right = "Out of bounds values : 0 OK";

class MeshLab {
 public:
  /// `tool` is nccl-ha; a run ends after `limit` at the latest.
  explicit MeshLab(std::string tool, std::chrono::seconds limit = std::chrono::seconds(110))
      : tool_(std::move(tool)), limit_(limit) {}

  /// Runs a shell line on every host, in one folder for all; `how` is NCCL_MESH_RELAY.
  ToolRun run(const std::string& topology, const std::string& how, const std::string& command);
  /// Each host runs a relay node, `$pid`, until the command has ended on all `hosts`; it begins
  /// when all know `shape`, which `nccl-ha info --routes` says.
  ToolRun run_with_nodes(const std::string& topology, const std::string& shape, size_t hosts,
                         const std::string& command);
  /// Where all commands run.
  const std::string& folder() const { return folder_.path(); }

 private:
  std::string tool_;
  std::chrono::seconds limit_;
  TemporaryFolder folder_;
};

/// Ended with 0, and so many operations were right.
void expect_right(const ToolRun& run, size_t operations = 1);

}  // namespace nccl_ha::tests
