// What a simulated run over a mesh is like: hosts, cables, settings, connections, faults.  All of
// it follows from the seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/random.h"
#include "tests/rig/runs/traffic.h"
#include "tests/rig/sim/network.h"

namespace nccl_ha::rig {

inline constexpr size_t mesh_hosts_max = 64;

struct MeshScenario {
  struct Cable {
    size_t one = 0;
    size_t other = 0;
    bool late = false;  ///< plugged in while traffic runs
  };
  struct Ends {
    size_t from = 0;
    size_t to = 0;
  };
  uint64_t seed = 1;
  size_t hosts = 2;
  std::vector<Cable> cables;
  std::vector<bool> relays;  ///< of each host: paths of others may lead through it
  std::vector<bool> late;    ///< of each host: it is switched on while traffic runs
  /// Of each host: a process of the job looks and relays by itself; else a relay node without a key
  /// does, to which the job lends its keys.  Empty: nodes alone, and no keys.
  std::vector<bool> by_itself;
  bool cluster_key = false;  ///< all have it; then nobody looks by itself
  std::vector<Ends> links;
  sim::Link usual;  ///< what any cable is like while nothing is wrong
  Config config;    ///< of all hosts
  TransferPlan plan;
  bool loaded = false;       ///< links share relays whose limits are small, and move much
  bool all_at_once = false;  ///< else some messages begin after each fault
  size_t faults = 0;
  Duration apart{};       ///< between two faults, at most
  Duration heals_in{};    ///< what fails for a while is back within
  bool for_good = false;  ///< cables and hosts may stay away where ways are left
  bool early = false;     ///< faults begin before discovery has found anybody
  Duration limit = std::chrono::seconds(300);

  bool is_end(size_t host) const;
  /// Cables at a host, ascending; each is an interface of its own, in this order.
  std::vector<size_t> cables_of(size_t host) const;
};

/// What is there of a mesh.
struct MeshRemains {
  std::vector<bool> cables;
  std::vector<bool> hosts;
};
/// How many cables lie between two hosts on the shortest way over hosts that relay; nothing: there
/// is none.  `direct`: a cable from one to the other counts.
std::optional<size_t> mesh_distance(const MeshScenario& scenario, const MeshRemains& remains,
                                    size_t from, size_t to, bool direct = true);
/// Everything that is there from the beginning.
MeshRemains mesh_at_first(const MeshScenario& scenario);
/// Every connection has a way that is not too long.
bool mesh_serves_all(const MeshScenario& scenario, const MeshRemains& remains);

MeshScenario draw_mesh(uint64_t seed);
/// For a trace.
std::string describe(const MeshScenario& scenario);

}  // namespace nccl_ha::rig
