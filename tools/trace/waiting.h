// `nccl-ha trace waiting`: what the connections of a process wait for now, for a job that hangs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/trace/timeline.h"

namespace nccl_ha::tools {

struct WaitingPath {
  std::string name;
  bool usable = false;
  uint64_t writes = 0;      ///< under way
  uint64_t heartbeats = 0;  ///< without an answer
};

/// A connection with requests that are not done.
struct WaitingRow {
  std::string process;     ///< "host:pid"
  std::string connection;  ///< with the peer
  uint64_t key = 0;        ///< the same at the peer
  bool sender = false;
  uint64_t requests = 0;
  /// How long the oldest of them has been open; none: its beginning is no longer recorded.
  std::optional<int64_t> oldest_ns;
  std::string waits_for;
  std::vector<WaitingPath> paths;
};

/// The longest first.  Pure.
std::vector<WaitingRow> waiting_of(const Timeline& timeline);

std::string waiting_text(const WaitingRow& row);
void print_waiting_json(const Timeline& timeline, const std::vector<WaitingRow>& rows);

}  // namespace nccl_ha::tools
