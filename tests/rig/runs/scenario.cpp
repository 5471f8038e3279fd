#include "tests/rig/runs/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nccl_ha::rig {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::array<const char*, run_kinds> names{
    "classic", "paths", "streams", "pauses", "deaths", "closes", "crowd", "volume", "devices"};

int64_t between(Random& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random.below(static_cast<uint64_t>(most - least + 1)));
}

template <size_t count>
int64_t one_of(Random& random, const std::array<int64_t, count>& values) {
  return values[random.below(count)];
}

/// Both hosts of a job usually have the same settings; here each has its own.
Config draw_config(Random& random, const Scenario& scenario) {
  Config config;
  config.dgram_dead_ms = between(random, 200, 1000);
  config.dgram_paths = between(random, 1, 4);
  config.ib_qps = between(random, 1, 4);
  config.ib_split_threshold = one_of<3>(random, {128, 4096, 65536});
  config.ib_adaptive_routing = one_of<3>(random, {-1, 0, 1});
  config.ib_ar_threshold = one_of<4>(random, {0, 200, 3000, 8192});
  config.ib_flush = between(random, 0, 1);
  config.heartbeat_ms = between(random, 10, 210);
  config.soft_timeout_ms = between(random, 50, 400);
  config.rto_ms = one_of<3>(random, {300, 1000, 1000});
  config.enable_failback = random.chance(0.5);
  config.failback_ms = between(random, 0, 500);
  config.progress_threads = random.chance(0.2) ? between(random, 2, 3) : 1;
  config.shadow_datagrams = scenario.spare;
  config.dgram_window = one_of<4>(random, {16, 64, 1024, 8192});
  config.dgram_credits = one_of<3>(random, {1, 8, 64});
  config.dgram_tiny = one_of<2>(random, {64, 768});
  config.dgram_mtu = one_of<3>(random, {0, 1500, 4200});
  config.use_progress_thread = !random.chance(0.25);
  return config;
}

void draw_faults(Random& random, Scenario& scenario) {
  const bool two = scenario.rails > 1 || scenario.spare;
  scenario.apart = milliseconds(random.chance(0.5) ? 2 : two && random.chance(0.5) ? 1500 : 30);
  scenario.for_good = two && scenario.backed();
  switch (scenario.kind) {
    case RunKind::classic:
      break;
    case RunKind::paths:
      scenario.path_faults = 8;
      break;
    case RunKind::streams:
      scenario.stream_faults = 4;
      scenario.path_faults = random.chance(0.6) ? 4 : 0;
      scenario.apart = seconds(random.chance(0.5) ? 1 : 40);
      break;
    case RunKind::pauses:
      scenario.pauses = 6;
      scenario.path_faults = random.chance(0.5) ? 3 : 0;
      scenario.apart = milliseconds(random.chance(0.5) ? 50 : 1000);
      break;
    case RunKind::deaths:
      scenario.death = true;
      scenario.path_faults = random.chance(0.3) ? 2 : 0;
      break;
    case RunKind::closes:
      scenario.path_faults = 5;
      break;
    case RunKind::crowd:
      scenario.path_faults = 6;
      scenario.pauses = random.chance(0.3) ? 2 : 0;
      scenario.death = random.chance(0.3);
      break;
    case RunKind::devices:
      scenario.device_faults = true;
      scenario.path_faults = 8;
      break;
    case RunKind::volume:
      scenario.path_faults = 12;
      scenario.suspicions = std::max(scenario.suspicions, 0.8);
      scenario.apart = milliseconds(20);
      scenario.for_good = false;
      if (scenario.plan.groups < 1000 && random.chance(0.05)) {
        // So many paths in one place that epochs of 8 bits wrap.
        scenario.path_faults = 600;
        scenario.suspected_paths = 1;
        scenario.suspicions = 0.99;
        scenario.plan.groups = 1500;
      }
      break;
  }
}

void draw_traffic(Random& random, Scenario& scenario) {
  TransferPlan& plan = scenario.plan;
  plan.groups = 24;
  plan.bytes_max = 100000;
  plan.large = 0.3;
  plan.late_write_window = 64;
  plan.memory_returns = random.chance(0.5);
  plan.flushes = scenario.rdma && random.chance(0.3);
  if (scenario.kind == RunKind::closes) {
    plan.closes = true;
    plan.flushes = false;  // a flush needs its peer's connection
  }
  if (scenario.kind == RunKind::volume) {
    plan.groups = random.chance(0.03) ? 8192 + 400 : 500;
    plan.grouped = 0.6;
    plan.large = 0;
    plan.small_max = 40;
    plan.memory_returns = false;
  }
  if (scenario.kind == RunKind::crowd) {
    plan.groups = 10;
    plan.bytes_max = 20000;
  }
}

/// One network, so of one kind; else each host has its own.
void draw_devices(Random& random, Scenario& scenario) {
  const bool infiniband = random.chance(0.25);
  for (size_t host = 0; host < scenario.hosts; ++host) {
    sim::DeviceTraits traits = sim::draw_device_traits(random);
    traits.infiniband = infiniband;
    traits.gpu = scenario.plan.gpu;
    traits.mtu = host == 0 ? traits.mtu : scenario.traits.front().mtu;
    traits.old_kernel = (scenario.seed + host) % 4 == 1;
    scenario.traits.push_back(traits);
  }
}

/// Chunks of several writes each, and so many that queues fill between two of them.
void draw_pieces(Scenario& scenario, Random& random) {
  const bool small = scenario.kind == RunKind::volume;
  const uint32_t longest = 4096U << random.below(2);
  for (size_t host = 0; host < scenario.hosts; ++host) {
    Config& config = scenario.configs[host];
    config.ib_qps = between(random, 1, 3);
    if (small) {  // of a chunk and its record
      config.ib_adaptive_routing = 1;
      config.ib_ar_threshold = 0;
    } else {
      scenario.traits[host].message_max = longest;
    }
  }
  if (!small && scenario.kind != RunKind::crowd) {
    scenario.plan.large = 0.6;
  }
}

/// Settings that meet seldom where each is drawn by itself.  Drawn apart, and not in every run, so
/// that the others are what they were.
void draw_together(Scenario& scenario) {
  Random random(scenario.seed * 0xA0761D6478BD642F + static_cast<uint64_t>(scenario.kind));
  // Rails of one device at once; of pauses it is asked whether a path was given up, which a rail
  // that is slow may be.
  if (scenario.rails > 1 && scenario.kind != RunKind::pauses && random.chance(0.2)) {
    constexpr std::array<uint64_t, 4> rates{50'000'000, 20'000'000, 100'000'000, 5'000'000};
    scenario.suspected_paths = std::max<size_t>(scenario.suspected_paths, 8);
    scenario.device_rails = 2 + random.below(scenario.rails - 1);
    scenario.sout_and_sup = scenario.device_rails == 2 && random.chance(0.5);
    scenario.hinted = random.chance(0.5);
    const bool unequal = random.chance(0.5);
    for (size_t rail = 0; unequal && rail < scenario.rails; ++rail) {
      scenario.rates.push_back(rates[random.below(rates.size())]);
    }
    const bool routes = random.chance(0.6);
    const bool fences = random.chance(0.3);
    const int64_t mode = random.chance(0.7) ? 1 : 0;
    for (Config& config : scenario.configs) {
      config.mpib_mode = mode;
      config.mpib_sout_qp = static_cast<int64_t>(1 + random.below(2));
      config.mpib_sup_qp = static_cast<int64_t>(1 + random.below(3));
      config.mpib_direct_bytes = random.chance(0.5) ? 0 : 65536;
      config.ib_adaptive_routing = routes ? 1 : config.ib_adaptive_routing;
      config.straggler_ms = 20;
      config.fence_stragglers = fences;
    }
  }
  const bool smaller = random.chance(0.3);
  for (size_t host = 0; scenario.rdma && smaller && host < scenario.hosts; ++host) {
    scenario.traits[host].mtu = 1024U << random.below(3);  // the ports of some take less
  }
  const bool pieces = scenario.rdma && random.chance(0.15);
  if (pieces) {
    draw_pieces(scenario, random);
  }
  scenario.paired =
      scenario.path_faults != 0 && scenario.path_faults < 100 && random.chance(pieces ? 0.8 : 0.25);
  for (Config& config : scenario.configs) {
    // Verdicts fall faster than anything is carried.
    config.max_retries = scenario.paired ? 1000 : config.max_retries;
  }
}

void draw_links(Random& random, Scenario& scenario) {
  if (scenario.kind != RunKind::crowd) {
    scenario.links.push_back({0, 1});
    if (scenario.kind != RunKind::volume && random.chance(0.2)) {
      scenario.links.push_back({1, 0});
    }
    return;
  }
  scenario.hosts = 2 + random.below(2);
  scenario.processes_per_host = 1 + random.below(2);
  const size_t count = 3 + random.below(4);
  for (size_t i = 0; i < count; ++i) {
    const size_t from = random.below(scenario.hosts);
    const size_t to = (from + 1 + random.below(scenario.hosts - 1)) % scenario.hosts;
    // RDMA: each process has NICs of its own, and those of one number are cabled.
    const size_t number = random.below(scenario.processes_per_host);
    const size_t other = scenario.rdma ? number : random.below(scenario.processes_per_host);
    scenario.links.push_back(
        {from * scenario.processes_per_host + number, to * scenario.processes_per_host + other});
  }
}

}  // namespace

const char* to_text(RunKind kind) { return names[static_cast<size_t>(kind)]; }

std::optional<RunKind> run_kind_of(std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? std::nullopt
                              : std::optional(static_cast<RunKind>(found - names.begin()));
}

bool Scenario::backed() const {
  return std::all_of(configs.begin(), configs.end(),
                     [](const Config& one) { return one.enable_backup && one.shadow_paths != 0; });
}

sim::Link Scenario::usual_of(size_t line) const {
  sim::Link link = usual;
  link.rate = line < rates.size() ? rates[line] : link.rate;
  return link;
}

std::string describe(const Scenario& scenario) {
  std::string text =
      fmt::format("{}: {} hosts of {} processes, {} rails of {}{}{}", to_text(scenario.kind),
                  scenario.hosts, scenario.processes_per_host, scenario.rails,
                  scenario.rdma ? "RDMA" : "datagrams", scenario.spare ? ", a spare interface" : "",
                  scenario.management ? ", a management network" : "");
  for (const Scenario::Ends& link : scenario.links) {
    text += fmt::format(", {} to {}", link.from, link.to);
  }
  text += fmt::format("; {} groups each{}{}{}{}", scenario.plan.groups,
                      scenario.plan.memory_returns ? ", memory comes and goes" : "",
                      scenario.plan.flushes ? ", flushes" : "",
                      scenario.plan.gpu ? ", memory of a GPU" : "",
                      scenario.rdma && scenario.traits.front().infiniband ? ", InfiniBand" : "");
  if (scenario.device_rails > 1) {
    text +=
        fmt::format("; {} rails of one device{}{}{}", scenario.device_rails,
                    scenario.sout_and_sup ? ", SOUT and SUP" : "", scenario.hinted ? ", hints" : "",
                    scenario.rates.empty() ? "" : ", of unequal rates");
  }
  text += scenario.paired ? "; faults in pairs" : "";
  for (const Config& config : scenario.configs) {
    text += fmt::format(
        "\n    queue pairs {} datagram paths {} split {} adaptive {} above {} flush {} heartbeat "
        "{} "
        "soft {} rto {} failback {} {} threads {} window {} credits {} tiny {} mtu {} backup {} "
        "shadows {} budget {}{}",
        config.ib_qps, config.dgram_paths, config.ib_split_threshold, config.ib_adaptive_routing,
        config.ib_ar_threshold, config.ib_flush, config.heartbeat_ms, config.soft_timeout_ms,
        config.rto_ms, config.enable_failback, config.failback_ms, config.progress_threads,
        config.dgram_window, config.dgram_credits, config.dgram_tiny, config.dgram_mtu,
        config.enable_backup, config.shadow_paths, config.retry_budget_ms,
        config.use_progress_thread ? "" : " inline");
  }
  return text;
}

Scenario draw_scenario(const Wanted& wanted) {
  Random random(wanted.seed * 0x9E3779B97F4A7C15 + static_cast<uint64_t>(wanted.kind));
  Scenario scenario;
  scenario.seed = wanted.seed;
  scenario.kind = wanted.kind;
  scenario.suspicions = wanted.suspicions;
  const bool mixed = wanted.fabric == "mixed";
  scenario.rdma =
      mixed ? wanted.kind == RunKind::devices || random.chance(0.5) : wanted.fabric != "datagram";
  scenario.spare = mixed ? scenario.rdma && random.chance(0.4) : wanted.fabric == "spare";
  scenario.rails = random.chance(0.3) ? 1 : 2;
  // Drawn apart, so that what is drawn after it stays what it was.
  Random more(wanted.seed * 0xD1B54A32D192ED03 + static_cast<uint64_t>(wanted.kind));
  if (scenario.rails == 2 && more.chance(0.2)) {
    scenario.rails = 3;
    scenario.shadows = 1 + more.below(3);
  }
  // Datagrams take the interface that the stream takes.
  scenario.management = scenario.rdma && random.chance(wanted.kind == RunKind::streams ? 0.7 : 0.2);
  scenario.plan.gpu =
      scenario.rdma && !scenario.spare && wanted.kind != RunKind::closes && random.chance(0.25);
  draw_links(random, scenario);
  draw_devices(random, scenario);
  for (size_t i = 0; i < scenario.hosts; ++i) {
    scenario.configs.push_back(draw_config(random, scenario));
    scenario.configs.back().shadow_paths = static_cast<int64_t>(scenario.shadows);
    if (random.chance(0.5)) {
      scenario.configs.back() = scenario.configs.front();
    }
  }
  if (wanted.kind == RunKind::paths && random.chance(0.05)) {
    scenario.configs[random.below(scenario.hosts)].enable_backup = false;
    scenario.plan.may_end = true;
  }
  if (wanted.kind == RunKind::paths && random.chance(0.1)) {
    scenario.configs[random.below(scenario.hosts)].shadow_paths = 0;
  }
  if (wanted.kind == RunKind::pauses) {
    for (Config& config : scenario.configs) {
      config.dgram_dead_ms = 10000;  // which is for silence that nobody can explain
    }
  }
  if (wanted.kind == RunKind::deaths || wanted.kind == RunKind::crowd) {
    for (Config& config : scenario.configs) {
      // More than path faults may take together.
      config.retry_budget_ms = wanted.kind == RunKind::deaths ? between(random, 7000, 10000)
                                                              : between(random, 20000, 25000);
      config.connect_timeout_ms = 20000;
    }
  }
  if (wanted.kind == RunKind::volume) {
    for (Config& config : scenario.configs) {
      config.max_retries = 1000;  // verdicts fall faster than anything is carried
    }
  }
  scenario.usual.drop = random.chance(0.5) ? 0.02 : 0;
  scenario.usual.duplicate = random.chance(0.5) ? 0.02 : 0;
  scenario.usual.reorder = random.chance(0.5) ? 0.05 : 0;
  scenario.late = random.chance(0.5) ? 0.02 : 0;
  scenario.latest = microseconds(random.below(5000));
  scenario.early_faults = random.chance(0.2) && !scenario.plan.may_end;
  draw_traffic(random, scenario);
  draw_faults(random, scenario);
  if (wanted.together) {
    draw_together(scenario);
  }
  scenario.listens_on = more.chance(0.5);
  return scenario;
}

}  // namespace nccl_ha::rig
