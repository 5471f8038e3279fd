#include "tests/rig/runs/mesh_scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nccl_ha::rig {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

bool has_cable(const MeshScenario& scenario, size_t one, size_t other) {
  return std::any_of(scenario.cables.begin(), scenario.cables.end(), [&](const auto& cable) {
    return (cable.one == one && cable.other == other) || (cable.one == other && cable.other == one);
  });
}

void add_cable(MeshScenario& scenario, size_t one, size_t other) {
  scenario.cables.push_back({one, other, false});
}

size_t draw_hosts(Random& random) {
  const uint64_t size = random.below(20);
  if (size < 11) {
    return 3 + random.below(6);
  }
  return size < 18 ? 9 + random.below(16) : 25 + random.below(mesh_hosts_max - 24);
}

void draw_cables(MeshScenario& scenario, Random& random) {
  const size_t hosts = scenario.hosts;
  const uint64_t shape = random.below(6);
  if (shape == 0) {  // a ring
    for (size_t i = 0; i < hosts; ++i) {
      add_cable(scenario, i, (i + 1) % hosts);
    }
    return;
  }
  if (shape == 1) {  // a line
    for (size_t i = 0; i + 1 < hosts; ++i) {
      add_cable(scenario, i, i + 1);
    }
    return;
  }
  for (size_t i = 1; i < hosts; ++i) {
    // Early hosts have many cables in some graphs, and are far from late ones in others.
    const size_t reach = shape == 2 ? i : std::min<size_t>(i, 4);
    add_cable(scenario, i, i - 1 - random.below(reach));
  }
  const size_t more = random.below(hosts + 1);
  for (size_t i = 0; i < more; ++i) {
    const size_t one = random.below(hosts);
    const size_t other = random.below(hosts);
    const bool second = random.chance(0.1);  // two cables between the same hosts
    if (one != other && (second || !has_cable(scenario, one, other))) {
      add_cable(scenario, one, other);
    }
  }
}

void draw_links(MeshScenario& scenario, Random& random) {
  const MeshRemains all{std::vector<bool>(scenario.cables.size(), true),
                        std::vector<bool>(scenario.hosts, true)};
  const auto hops_max = static_cast<size_t>(scenario.config.mesh_max_hops) + 1;
  const size_t wanted = 1 + random.below(4);
  for (size_t tries = 0; scenario.links.size() < wanted && tries < 200; ++tries) {
    const size_t from = random.below(scenario.hosts);
    const size_t to = random.below(scenario.hosts);
    const size_t hops = from == to ? 0 : mesh_distance(scenario, all, from, to).value_or(0);
    const bool far = tries > 150 || random.chance(0.2) || hops > 1;
    if (hops != 0 && hops <= hops_max && far) {
      scenario.links.push_back({from, to});
    }
  }
  if (scenario.links.empty()) {
    scenario.links.push_back({scenario.cables.front().one, scenario.cables.front().other});
  }
}

/// What may be away at first, or has no part in relaying, without a connection losing its way.
void draw_parts(MeshScenario& scenario, Random& random) {
  for (size_t host = 0; host < scenario.hosts; ++host) {
    if (random.chance(0.1)) {
      scenario.relays[host] = false;
      scenario.relays[host] = !mesh_serves_all(scenario, mesh_at_first(scenario));
    }
  }
  for (auto& cable : scenario.cables) {
    cable.late = random.chance(0.15);
    cable.late = cable.late && mesh_serves_all(scenario, mesh_at_first(scenario));
  }
  for (size_t host = 0; host < scenario.hosts; ++host) {
    if (!scenario.is_end(host) && random.chance(0.15)) {
      scenario.late[host] = true;
      scenario.late[host] = mesh_serves_all(scenario, mesh_at_first(scenario));
    }
  }
}

void draw_config(Config& config, Random& random) {
  config.counters_dir = "";
  config.dgram_paths = 1;
  config.dgram_dead_ms = static_cast<int64_t>(300 + random.below(2000));
  config.heartbeat_ms = static_cast<int64_t>(20 + random.below(300));
  config.rto_ms = static_cast<int64_t>(100 + random.below(900));
  config.retry_budget_ms = 120000;
  config.connect_timeout_ms = 60000;
  config.handshake_timeout_ms = 60000;
  config.enable_failback = random.chance(0.7);
  config.failback_ms = static_cast<int64_t>(random.below(1000));
  config.mesh_max_hops = static_cast<int64_t>(1 + random.below(8));
  config.mesh_ring_split = random.chance(0.7);
  config.mesh_ring_detour = static_cast<int64_t>(random.below(3));
  config.mesh_hello_ms = static_cast<int64_t>(50 + random.below(450));
  config.mesh_dead_ms = 4 * config.mesh_hello_ms;
  config.mesh_chunk_bytes = int64_t{1} << (10 + random.below(7));
  config.mesh_slots = static_cast<int64_t>(random.chance(0.3) ? 4 : 4 + random.below(60));
  config.mesh_flight_bytes =
      std::max<int64_t>(int64_t{1} << (14 + random.below(9)), config.mesh_chunk_bytes);
  config.mesh_store = random.chance(0.3);
}

}  // namespace

bool MeshScenario::is_end(size_t host) const {
  return std::any_of(links.begin(), links.end(),
                     [&](const Ends& ends) { return ends.from == host || ends.to == host; });
}

std::vector<size_t> MeshScenario::cables_of(size_t host) const {
  std::vector<size_t> own;
  for (size_t i = 0; i < cables.size(); ++i) {
    if (cables[i].one == host || cables[i].other == host) {
      own.push_back(i);
    }
  }
  return own;
}

std::optional<size_t> mesh_distance(const MeshScenario& scenario, const MeshRemains& remains,
                                    size_t from, size_t to, bool direct) {
  std::vector<std::optional<size_t>> distance(scenario.hosts);
  std::vector<size_t> queue{from};
  distance[from] = 0;
  for (size_t at = 0; at < queue.size(); ++at) {
    const size_t host = queue[at];
    if (!remains.hosts[host] || (host != from && !scenario.relays[host])) {
      continue;
    }
    for (size_t i = 0; i < scenario.cables.size(); ++i) {
      const MeshScenario::Cable& cable = scenario.cables[i];
      if (!remains.cables[i] || (cable.one != host && cable.other != host)) {
        continue;
      }
      const size_t next = cable.one == host ? cable.other : cable.one;
      if (!direct && host == from && next == to) {
        continue;
      }
      if (!distance[next] && remains.hosts[next]) {
        distance[next] = *distance[host] + 1;
        queue.push_back(next);
      }
    }
  }
  return distance[to];
}

MeshRemains mesh_at_first(const MeshScenario& scenario) {
  MeshRemains remains;
  for (const MeshScenario::Cable& cable : scenario.cables) {
    remains.cables.push_back(!cable.late);
  }
  for (size_t host = 0; host < scenario.hosts; ++host) {
    remains.hosts.push_back(!scenario.late[host]);
  }
  return remains;
}

bool mesh_serves_all(const MeshScenario& scenario, const MeshRemains& remains) {
  const auto hops_max = static_cast<size_t>(scenario.config.mesh_max_hops) + 1;
  return std::all_of(scenario.links.begin(), scenario.links.end(), [&](const auto& ends) {
    const auto distance = mesh_distance(scenario, remains, ends.from, ends.to);
    return distance.value_or(hops_max + 1) <= hops_max;
  });
}

namespace {

/// Drawn apart, so that all else of a seed is as it was.
void draw_who_speaks(MeshScenario& scenario) {
  Random random(scenario.seed * 2 + 0x5EE4);
  const double share = random.chance(0.3) ? 0 : random.chance(0.5) ? 1 : random.unit();
  if (share > 0) {
    for (size_t i = 0; i < scenario.hosts; ++i) {
      scenario.by_itself.push_back(random.chance(share));
    }
  }
  scenario.cluster_key = share <= 0 && random.chance(0.6);
}

/// So much over so few relays that they reach their limits: of what is under way to a neighbour, of
/// memory for frames, of turns.  Drawn apart, and not in every mesh.
void draw_load(MeshScenario& scenario) {
  Random random(scenario.seed * 0xE7037ED1A0B428DB + 1);
  const auto relayed = std::ranges::find_if(scenario.links, [&](const auto& ends) {
    return mesh_distance(scenario, mesh_at_first(scenario), ends.from, ends.to).value_or(0) > 1;
  });
  scenario.loaded = scenario.hosts <= 24 && relayed != scenario.links.end() && random.chance(0.35);
  if (!scenario.loaded) {
    return;
  }
  const MeshScenario::Ends busy = *relayed;
  const size_t more = 3 + random.below(4);
  for (size_t i = 0; i < more; ++i) {
    scenario.links.push_back(random.chance(0.8) ? busy : MeshScenario::Ends{busy.to, busy.from});
  }
  Config& config = scenario.config;
  config.mesh_chunk_bytes = int64_t{1} << (11 + random.below(4));
  config.mesh_flight_bytes = config.mesh_chunk_bytes * static_cast<int64_t>(2 + random.below(8));
  if (random.chance(0.6)) {  // the first paths get more than the fewest slots, later ones less
    const int64_t least = 2 * 4 * (config.mesh_chunk_bytes + 128);
    config.mesh_pool_bytes = least * static_cast<int64_t>(24 + random.below(40));
  }
  scenario.plan.groups = 6 + random.below(6);
  scenario.plan.bytes_max = static_cast<uint32_t>(30'000 + random.below(120'000));
  scenario.plan.large = 0.8;
  scenario.usual.rate = 4'000'000 + random.below(20'000'000);
  scenario.heals_in = milliseconds(random.chance(0.5) ? 200 : 1500);
}

}  // namespace

MeshScenario draw_mesh(uint64_t seed) {
  Random random(seed * 2 + 1);
  MeshScenario scenario;
  scenario.seed = seed;
  scenario.hosts = draw_hosts(random);
  scenario.relays.assign(scenario.hosts, true);
  scenario.late.assign(scenario.hosts, false);
  draw_cables(scenario, random);
  draw_config(scenario.config, random);
  draw_links(scenario, random);
  draw_parts(scenario, random);
  scenario.usual.delay = microseconds(5 + random.below(100));
  scenario.usual.drop = random.chance(0.4) ? 0.01 : 0;
  scenario.usual.duplicate = random.chance(0.4) ? 0.01 : 0;
  scenario.usual.reorder = random.chance(0.4) ? 0.03 : 0;
  scenario.usual.rate = random.chance(0.5) ? 20'000'000 + random.below(200'000'000) : 0;
  scenario.plan.groups = scenario.hosts > 24 ? 8 : 8 + random.below(24);
  scenario.plan.bytes_max = static_cast<uint32_t>(1000 + random.below(300'000));
  scenario.plan.large = random.chance(0.5) ? 0.3 : 0.8;
  scenario.plan.memory_returns = random.chance(0.5);
  scenario.all_at_once = random.chance(0.5);
  if (scenario.all_at_once) {  // it is to last for some faults
    scenario.usual.rate = 2'000'000 + random.below(30'000'000);
  }
  scenario.faults = 1 + random.below(scenario.hosts > 24 ? 4 : 9);
  scenario.apart = milliseconds(random.chance(0.5) ? 5 + random.below(50) : random.below(3000));
  scenario.heals_in = milliseconds(random.chance(0.5) ? 200 : 4000);
  scenario.for_good = random.chance(0.5);
  scenario.early = random.chance(0.3);
  draw_who_speaks(scenario);
  draw_load(scenario);
  return scenario;
}

std::string describe(const MeshScenario& scenario) {
  std::string text = fmt::format(
      "{} hosts, {} cables, {} connections, {} faults; chunks of {} bytes, {} slots, {} hosts in "
      "between at most{}{}{}",
      scenario.hosts, scenario.cables.size(), scenario.links.size(), scenario.faults,
      scenario.config.mesh_chunk_bytes, scenario.config.mesh_slots, scenario.config.mesh_max_hops,
      scenario.config.mesh_store ? ", store and forward" : "",
      scenario.config.mesh_ring_split ? "" : ", no split", scenario.early ? ", early faults" : "");
  if (!scenario.by_itself.empty()) {
    text += fmt::format("; {} hosts by themselves", std::ranges::count(scenario.by_itself, true));
  }
  text += scenario.loaded
              ? fmt::format("; loaded, {} bytes under way and {} in all at a relay",
                            scenario.config.mesh_flight_bytes, scenario.config.mesh_pool_bytes)
              : "";
  text += scenario.cluster_key ? "; a key of the cluster" : "";
  for (const MeshScenario::Ends& ends : scenario.links) {
    text += fmt::format("; {} > {}", ends.from, ends.to);
  }
  text += "; cables";
  for (const MeshScenario::Cable& cable : scenario.cables) {
    text += fmt::format(" {}-{}{}", cable.one, cable.other, cable.late ? "*" : "");
  }
  return text;
}

}  // namespace nccl_ha::rig
