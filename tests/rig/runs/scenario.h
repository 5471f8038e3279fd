// What a simulated run is like: hosts, cables, settings, connections, traffic.  All of it follows
// from the seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/config.h"
#include "tests/rig/runs/traffic.h"
#include "tests/rig/sim/network.h"
#include "tests/rig/sim/rdma_faults.h"

namespace nccl_ha::rig {

/// What mainly goes wrong in a run.
enum class RunKind : uint8_t {
  classic,  ///< two hosts, a connection, paths that die or are believed to; simple settings
  paths,    ///< the same with settings drawn for each host, memory that comes and goes, flushes
  streams,  ///< the management network, middleboxes, resets
  pauses,   ///< processes and callers stand still, threads starve
  deaths,   ///< a process or a host dies
  closes,   ///< connections close as soon as their requests are done, in the middle of faults
  crowd,    ///< many connections, both directions, several processes of a host
  volume,   ///< so many small messages that rings and numbers wrap
  devices,  ///< calls of RDMA devices that fail or take long, memory that is seen in pieces
};
inline constexpr size_t run_kinds = 9;
const char* to_text(RunKind kind);
std::optional<RunKind> run_kind_of(std::string_view name);

struct Scenario {
  uint64_t seed = 1;
  RunKind kind = RunKind::paths;
  size_t hosts = 2;
  size_t processes_per_host = 1;
  size_t rails = 1;    ///< of a process
  size_t shadows = 1;  ///< that its connections keep ready, where there are rails for them
  bool rdma = false;
  size_t device_rails = 1;      ///< so many of the first ones are those of one device
  bool sout_and_sup = false;    ///< and so called
  bool hinted = false;          ///< senders have hints of an agent
  std::vector<uint64_t> rates;  ///< of each rail, in bytes per second; empty: as `usual`
  bool spare = false;           ///< an interface besides, over which datagrams may take over
  bool management = false;      ///< control streams have a network of their own
  sim::Link usual;
  double late = 0;  ///< part of the completions of RDMA NICs that come late
  Duration latest{};
  std::vector<Config> configs;            ///< of each host
  std::vector<sim::DeviceTraits> traits;  ///< of the NICs of each host
  bool device_faults = false;             ///< once connections are ready
  struct Ends {
    size_t from = 0;  ///< processes: host * processes_per_host + number
    size_t to = 0;
  };
  std::vector<Ends> links;
  TransferPlan plan;  ///< of each connection, with a seed of its own
  size_t path_faults = 0;
  double suspicions = 0.5;     ///< part of them that are verdicts on a living path
  bool paired = false;         ///< many meet another lane a moment after, or a half posted chunk
  size_t suspected_paths = 5;  ///< those meet only so many paths of a connection
  size_t stream_faults = 0;
  size_t pauses = 0;
  bool death = false;
  Duration apart{};           ///< between two faults, at most
  double callers_help = 0;    ///< sim::World's
  bool early_faults = false;  ///< they begin with the handshake
  bool for_good = false;      ///< a rail may go for good
  bool listens_on = true;     ///< NCCL closes a listener once it has accepted
  Duration limit = std::chrono::seconds(200);

  /// A connection over all of this outlives the loss of a path.
  bool backed() const;
  /// What a rail is like while nothing is wrong.
  sim::Link usual_of(size_t line) const;
};

/// For a trace.
std::string describe(const Scenario& scenario);

struct Wanted {
  uint64_t seed = 1;
  RunKind kind = RunKind::paths;
  std::string fabric = "mixed";
  double suspicions = 0.5;
  bool together = true;  ///< settings that meet seldom, and faults in pairs, in some runs
};
Scenario draw_scenario(const Wanted& wanted);

}  // namespace nccl_ha::rig
