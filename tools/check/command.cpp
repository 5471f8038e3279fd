// nccl-ha check: is this host, and the network between hosts, fit for a job?
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/check/compare.h"
#include "tools/check/explain.h"
#include "tools/check/findings.h"
#include "tools/check/interface_facts.h"
#include "tools/check/mesh_findings.h"
#include "tools/check/mesh_paths.h"
#include "tools/check/neighbours.h"
#include "tools/check/pairs.h"
#include "tools/check/sheet.h"
#include "tools/commands.h"
#include "tools/common/environment.h"
#include "tools/common/output.h"
#include "tools/common/refusal.h"
#include "tools/common/remote_ranks.h"
#include "tools/common/terminal.h"
#include "tools/common/within.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

/// Exit statuses.
constexpr int found_errors = 1;
constexpr int could_not_check = 2;
/// Ranks of another run must not be taken for ours ("check2" in ASCII: the second way to talk).
constexpr uint64_t cookie = 0x636865636B32;
constexpr auto join_time = std::chrono::seconds(60);
constexpr size_t brief_columns = 80;

struct CheckOptions {
  RemoteOptions remote;
  std::string rendezvous;
  std::string plugin = "ha";
  double patience_s = 5;
  double timeout_s = 600;
  bool as_json = false;
  bool brief = false;
  bool strict = false;
  bool require_plugin = false;

  Demands demands() const { return {require_plugin}; }
};

constexpr Refusal refuse_check{"nccl-ha check", could_not_check};

/// All that was found, on all hosts.
struct Report {
  std::vector<std::string> hosts;    ///< by rank
  std::vector<std::string> plugins;  ///< by rank: what NCCL would load there; empty: nothing
  std::vector<HostSheet> sheets;     ///< by rank
  std::vector<std::vector<Finding>> of_host;
  std::vector<PairResult> pairs;
  std::vector<Finding> of_network;
  std::optional<MeshSummary> mesh;

  size_t count(Level level) const {
    size_t sum = 0;
    const auto add = [&](const std::vector<Finding>& findings) {
      sum += static_cast<size_t>(std::count_if(findings.begin(), findings.end(),
                                               [&](auto& one) { return one.level == level; }));
    };
    add(of_network);
    for (const auto& findings : of_host) {
      add(findings);
    }
    return sum;
  }
  int status(bool strict) const {
    return count(Level::error) > 0 || (strict && count(Level::warning) > 0) ? found_errors : 0;
  }
};

std::string shown(Level level) {
  if (level == Level::hint) {
    return to_text(level);
  }
  return painted(to_text(level), level == Level::error ? Colour::red : Colour::yellow,
                 shows_colour(stdout));
}

void print_findings(const std::vector<Finding>& findings) {
  for (const Level level : {Level::error, Level::warning, Level::hint}) {
    for (const Finding& finding : findings) {
      if (finding.level == level) {
        print_wrapped("  {}: {}\n    do: {}\n", shown(level), finding.what, finding.remedy);
      }
    }
  }
  if (findings.empty()) {
    fmt::print("  {}\n", painted("ok", Colour::green, shows_colour(stdout)));
  }
}

void print_mesh(const MeshSummary& mesh) {
  fmt::print("network: {} of {} hosts, {} cables\n", mesh.shape, mesh.hosts, mesh.cables);
  if (mesh.pairs_relayed > 0) {
    fmt::print("  pairs of hosts without a cable: {}; {} relay their traffic\n", mesh.pairs_relayed,
               mesh.relays);
  }
}

/// As in "1 error, 0 warnings, 2 hints".
std::string counts_text(const Report& report) {
  std::string text;
  for (const Level level : {Level::error, Level::warning, Level::hint}) {
    text += (text.empty() ? "" : ", ") + counted(report.count(level), to_text(level));
  }
  return text;
}

void print_report(const Report& report) {
  for (size_t rank = 0; rank < report.hosts.size(); ++rank) {
    fmt::print("host {}\n  {}\n", report.hosts[rank], versions_text(report.sheets[rank]));
    if (!report.plugins[rank].empty()) {
      print_wrapped("  {}\n", report.plugins[rank]);
    }
    print_findings(report.of_host[rank]);
  }
  if (report.hosts.size() > 1) {
    if (report.mesh) {
      print_mesh(*report.mesh);
    } else {
      fmt::print("network: {} pairs of hosts and devices\n", report.pairs.size());
    }
    size_t width = 14;
    for (const PairResult& pair : report.pairs) {
      width = std::max(width, pair.device_name.size());
    }
    fmt::print("  {:<24} {:<{}} {:>12} {:>10}\n", "between", report.mesh ? "cable" : "device",
               width, "round trip", "bandwidth");
    for (const PairResult& pair : report.pairs) {
      const std::string who = report.hosts[pair.from] + " and " + report.hosts[pair.to];
      if (!pair.error.empty()) {
        fmt::print("  {:<24} {:<{}} {:>23}\n", who, pair.device_name, width, "fails");
        continue;
      }
      fmt::print("  {:<24} {:<{}} {:>9.1f} us {:>5.3f} GB/s\n", who, pair.device_name, width,
                 pair.round_trip_us, pair.gigabytes_per_s);
    }
    print_findings(report.of_network);
  } else {
    print_wrapped(
        "network: not looked at; give --hosts, or start this with your launcher (srun, "
        "mpirun, torchrun)\n");
  }
  fmt::print("{}\n", counts_text(report));
}

/// One line of a terminal: the verdict, what is in the way first of all, and how much more there
/// is.
void print_brief(const Report& report, bool strict) {
  std::string worst;
  for (const Level level : {Level::error, Level::warning}) {
    for (size_t rank = 0; rank < report.hosts.size(); ++rank) {
      for (const Finding& one : report.of_host[rank]) {
        if (worst.empty() && one.level == level) {
          worst = report.hosts.size() > 1 ? report.hosts[rank] + ": " + one.what : one.what;
        }
      }
    }
    for (const Finding& one : report.of_network) {
      if (worst.empty() && one.level == level) {
        worst = one.what;
      }
    }
  }
  std::replace(worst.begin(), worst.end(), '\n', ' ');
  const std::string verdict =
      fmt::format("nccl-ha check {}: ", report.status(strict) == 0 ? "passed" : "failed");
  const size_t all = report.count(Level::error) + report.count(Level::warning);
  const std::string more = all > 1 ? fmt::format(" (+{} more)", all - 1) : "";
  const size_t room = brief_columns - verdict.size() - more.size();
  if (worst.size() > room) {
    worst = worst.substr(0, room - 3) + "...";
  }
  fmt::print("{}{}{}\n", verdict, worst.empty() ? "ok" : worst, more);
}

json findings_json(const std::vector<Finding>& findings) {
  json all = json::array();
  for (const Finding& finding : findings) {
    all.push_back(to_json(finding));
  }
  return all;
}

void print_json(const Report& report, bool strict) {
  json hosts = json::array();
  for (size_t rank = 0; rank < report.hosts.size(); ++rank) {
    json host = to_json(report.sheets[rank]);
    host["name"] = report.hosts[rank];
    host["plugin"] = report.plugins[rank];
    host["findings"] = findings_json(report.of_host[rank]);
    hosts.push_back(std::move(host));
  }
  json pairs = json::array();
  for (const PairResult& pair : report.pairs) {
    json entry = to_json(pair);
    entry["hosts"] = {report.hosts[pair.from], report.hosts[pair.to]};
    pairs.push_back(std::move(entry));
  }
  json out{{"hosts", std::move(hosts)},
           {"pairs", std::move(pairs)},
           {"network", findings_json(report.of_network)},
           {"errors", report.count(Level::error)},
           {"warnings", report.count(Level::warning)},
           {"hints", report.count(Level::hint)},
           {"ok", report.status(strict) == 0}};
  if (report.mesh) {
    out["mesh"] = {{"shape", report.mesh->shape},
                   {"hosts", report.mesh->hosts},
                   {"cables", report.mesh->cables},
                   {"pairs_relayed", report.mesh->pairs_relayed},
                   {"relays", report.mesh->relays}};
  }
  print_document(document("check", out));
}

void print(const Report& report, const CheckOptions& options) {
  if (options.as_json) {
    print_json(report, options.strict);
  } else if (options.brief) {
    print_brief(report, options.strict);
  } else {
    print_report(report);
  }
}

/// Where NCCL finds none, a finding says so.
std::string found_plugin(const HostFacts& facts) {
  return facts.plugin.of_nccl ? facts.plugin.text() : "";
}

/// What every rank tells the first.
std::string rank_text(const HostFacts& facts, const std::vector<Finding>& findings,
                      const std::vector<CheckedDevice>& devices,
                      const std::vector<PairResult>& pairs, uint32_t rank) {
  json all = json::array();
  for (const PairResult& pair : pairs) {
    if (is_worth_telling(pair, rank)) {
      all.push_back(to_json(pair));
    }
  }
  json names = json::array();
  for (const CheckedDevice& device : devices) {
    names.push_back({device.name, device.interface});
  }
  const json text{{"plugin", found_plugin(facts)},
                  {"findings", findings_json(findings)},
                  {"devices", std::move(names)},
                  {"pairs", std::move(all)},
                  {"neighbours", to_json(read_neighbours())}};
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// All hosts' cables, and what is to be done about them.
struct Mesh {
  std::vector<MeshSheet> sheets;  ///< by rank
  MeshPlan plan;
};

/// What a rank has for devices, as its text and its sheet tell.
HostDevices devices_of(const json& text, const std::vector<HostSheet>& sheets, size_t rank,
                       const std::vector<Finding>& findings) {
  HostDevices devices;
  devices.bare = sheets[rank].bare;
  if (!text.is_array()) {  // another version's
    for (const RailSheet& rail : sheets[rank].rails) {
      devices.names.push_back(rail.name);
      devices.interfaces.push_back(rail.interface);
      devices.networks.push_back(rail.networks.empty() ? "" : rail.networks.front());
    }
  }
  for (const json& one : text.is_array() ? text : json::array()) {
    if (!one.is_array() || one.size() != 2 || !one[0].is_string() || !one[1].is_string()) {
      continue;
    }
    devices.names.push_back(one[0]);
    devices.interfaces.push_back(one[1]);
    std::string network;
    for (const RailSheet& rail : sheets[rank].rails) {
      if (rail.name == devices.names.back() && !rail.networks.empty()) {
        network = rail.networks.front();
      }
    }
    devices.networks.push_back(network);
  }
  for (const char* variable : {"HA_NCCL_IFNAME", "HA_NCCL_IB_HCA"}) {
    const auto value = [&](const HostSheet& sheet) {
      const auto found = sheet.settings.find(variable);
      return found == sheet.settings.end() ? "" : found->second;
    };
    const std::string own = value(sheets[rank]);
    if (!own.empty() && std::any_of(sheets.begin(), sheets.end(),
                                    [&](const HostSheet& one) { return value(one) != own; })) {
      devices.only = fmt::format("{}={}", variable, own);
    }
  }
  // What it says of a rail that is no device of its.
  const auto is_device = [&](const RailAt& one) {
    return std::count(devices.names.begin(), devices.names.end(), one.rail) > 0 ||
           std::count(devices.interfaces.begin(), devices.interfaces.end(), one.rail) > 0;
  };
  devices.lost =
      static_cast<size_t>(std::count_if(findings.begin(), findings.end(), [&](const Finding& one) {
        return std::any_of(one.rails.begin(), one.rails.end(), [&](const RailAt& rail) {
          return !rail.rail.empty() && !is_device(rail);
        });
      }));
  return devices;
}

/// The causes first: what hosts say of themselves, what they say beside each other, what was tried.
void judge_network(Report& report, const Mesh& mesh, const std::vector<HostDevices>& devices,
                   const std::vector<std::vector<Neighbour>>& neighbours) {
  std::vector<Finding> before = compare(report.sheets, report.hosts, mesh.plan.is_mesh);
  if (!mesh.plan.is_mesh) {
    for (const std::vector<Finding>& more :
         {judge_device_counts(devices, report.hosts),
          judge_neighbours(report.sheets, neighbours, report.hosts)}) {
      before.insert(before.end(), more.begin(), more.end());
    }
  }
  std::vector<Finding*> explaining;
  for (std::vector<Finding>& of_one : report.of_host) {
    for (Finding& finding : of_one) {
      explaining.push_back(&finding);
    }
  }
  for (Finding& finding : before) {
    explaining.push_back(&finding);
  }
  explain(report.pairs, mesh.plan.is_mesh ? std::vector<HostDevices>(report.hosts.size()) : devices,
          explaining);
  report.of_network = std::move(before);
  if (mesh.plan.is_mesh) {
    report.mesh = summary_of(mesh.plan, mesh.sheets);
  }
  const std::vector<Finding> tried =
      mesh.plan.is_mesh ? judge_mesh(mesh.plan, mesh.sheets, report.pairs, report.hosts)
                        : judge(report.pairs, report.hosts);
  report.of_network.insert(mesh.plan.is_mesh ? report.of_network.begin() : report.of_network.end(),
                           tried.begin(), tried.end());
}

Result<Report> collect(const std::vector<HostSheet>& sheets, const Mesh& mesh,
                       const std::vector<std::string>& texts) {
  Report report;
  std::vector<PairResult> seen;
  std::vector<HostDevices> devices;
  std::vector<std::vector<Neighbour>> neighbours;
  report.sheets = sheets;
  report.hosts = distinct_names(sheets);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const json text = json::parse(texts[rank], nullptr, false);
    if (!text.is_object() || !text.contains("plugin") || !text["plugin"].is_string() ||
        !text.contains("findings") || !text.contains("pairs") || !text.contains("devices")) {
      return fail(Errc::internal, fmt::format("what rank {} found cannot be read", rank));
    }
    report.plugins.push_back(text["plugin"]);
    report.of_host.emplace_back();
    neighbours.push_back(neighbours_from_json(text.value("neighbours", json::array())));
    for (const json& entry : text["findings"]) {
      if (auto finding = finding_from_json(entry)) {
        for (RailAt& one : finding->rails) {
          one.host = rank;
        }
        report.of_host.back().push_back(std::move(*finding));
      }
    }
    devices.push_back(devices_of(text["devices"], sheets, rank, report.of_host.back()));
    for (const json& entry : text["pairs"]) {
      auto pair = pair_from_json(entry);
      if (!pair || pair->from >= texts.size() || pair->to >= texts.size()) {
        return fail(Errc::internal, fmt::format("what rank {} found cannot be read", rank));
      }
      pair->seen_by = static_cast<uint32_t>(rank);
      seen.push_back(std::move(*pair));
    }
  }
  report.pairs = merge(seen, report.hosts);
  judge_network(report, mesh, devices, neighbours);
  return report;
}

/// All ranks' sheets, by rank, with clocks that were read at one moment.
Result<std::vector<HostSheet>> exchange_sheets(World& world, HostSheet own) {
  if (auto together = world.barrier(); !together) {
    return together.error();
  }
  own.clock_s = wall_clock_s();
  auto texts = world.all_gather(to_json(own).dump(-1, ' ', false, json::error_handler_t::replace));
  if (!texts) {
    return texts.error();
  }
  std::vector<HostSheet> sheets;
  for (const std::string& text : *texts) {
    auto sheet = sheet_from_json(json::parse(text, nullptr, false));
    if (!sheet) {
      return sheet.error();
    }
    sheets.push_back(std::move(*sheet));
  }
  return sheets;
}

/// All ranks look for their neighbours at one time, and answer until all have seen them.
Result<Mesh> look_at_cables(World& world, HostFacts& facts,
                            const std::vector<CheckedDevice>& devices) {
  constexpr auto neighbours_answer_within = std::chrono::seconds(5);
  if (auto together = world.barrier(); !together) {
    return together.error();
  }
  auto look = MeshLook::begin(facts.config, facts.all_interfaces);
  if (look) {
    look->settle(neighbours_answer_within);
  }
  if (auto together = world.barrier(); !together) {
    return together.error();
  }
  const Result<MeshSight> sight = look ? look->sight() : Result<MeshSight>(look.error());
  facts.miscabled = miscablings_of(sight);
  std::vector<std::string> interfaces;
  for (const CheckedDevice& device : devices) {
    interfaces.push_back(device.interface);
  }
  const MeshSheet own = make_mesh_sheet(facts.config, facts.all_interfaces, interfaces, sight);
  auto texts = world.all_gather(to_json(own).dump(-1, ' ', false, json::error_handler_t::replace));
  if (!texts) {
    return texts.error();
  }
  Mesh mesh;
  for (const std::string& text : *texts) {
    auto sheet = mesh_sheet_from_json(json::parse(text, nullptr, false));
    if (!sheet) {
      return sheet.error();
    }
    mesh.sheets.push_back(std::move(*sheet));
  }
  mesh.plan = plan_mesh(mesh.sheets);
  facts.on_mesh = mesh.plan.is_mesh;
  if (facts.on_mesh) {
    facts.miscabled.clear();
  }
  return mesh;
}

World::Options world_options(const CheckOptions& options, const LaunchedRank& place) {
  SteadyClock clock;
  World::Options made;
  made.rank = place.rank;
  made.size = place.world_size;
  made.host = place.host;
  made.port = place.port;
  made.cookie = cookie;
  made.deadline = clock.now() + Duration(static_cast<int64_t>(options.timeout_s * 1e9));
  made.join_deadline = std::min(made.deadline, clock.now() + join_time);
  return made;
}

/// This rank's part of a check between hosts.
Result<int> check_network(const CheckOptions& options, const LaunchedRank& place) {
  auto world = World::join(world_options(options, place));
  if (!world) {
    return world.error();
  }
  auto give_up = [&](const Error& error) {
    (*world)->announce_failure(fmt::format("rank {}: {}", place.rank, error.message()));
    return error;
  };
  auto facts = look_at_host();
  if (!facts) {
    return give_up(facts.error());
  }
  auto sheets = exchange_sheets(**world, make_sheet(*facts));
  if (!sheets) {
    return give_up(sheets.error());
  }
  auto devices = checked_devices(*facts);
  if (!devices) {
    return give_up(devices.error());
  }
  auto mesh = look_at_cables(**world, *facts, *devices);
  if (!mesh) {
    return give_up(mesh.error());
  }
  facts->stray_routes = stray_routes(facts->interfaces, *sheets, place.rank);
  const std::vector<Finding> findings = judge(*facts, options.demands());
  const auto patience = Duration(static_cast<int64_t>(options.patience_s * 1e9));
  // A connection that hangs is to fail within the patience, unless the user says how long.
  setenv("HA_NCCL_CONNECT_TIMEOUT_MS",
         std::to_string(static_cast<int64_t>(options.patience_s * 1000)).c_str(), 0);
  set_plugin_log("", PluginLog::nothing);
  // Setting up has several steps, each with that time limit.
  const Trials trials{options.plugin, *devices, facts->config.counters_dir, 3 * patience};
  auto pairs = mesh->plan.is_mesh ? try_cables(**world, trials, mesh->plan, mesh->sheets)
                                  : try_pairs(**world, trials);
  if (!pairs) {
    return give_up(pairs.error());
  }
  auto texts = (*world)->gather(rank_text(*facts, findings, *devices, *pairs, place.rank));
  if (!texts) {
    return give_up(texts.error());
  }
  // The same status on every host, so that a script may ask any of them.
  std::string status;
  if (place.rank == 0) {
    auto report = collect(*sheets, *mesh, *texts);
    if (!report) {
      return give_up(report.error());
    }
    print(*report, options);
    status = std::to_string(report->status(options.strict));
  }
  auto told = (*world)->broadcast(status);
  if (!told) {
    return told.error();
  }
  return std::atoi(told->c_str());
}

int check_alone(const CheckOptions& options) {
  HostFacts facts = refuse_check.need(look_at_host());
  facts.miscabled = look_at_cabling(facts);
  Report report;
  report.hosts.push_back(facts.name);
  report.sheets.push_back(make_sheet(facts));
  report.plugins.push_back(found_plugin(facts));
  report.of_host.push_back(judge(facts, options.demands()));
  print(report, options);
  return report.status(options.strict);
}

void run(CheckOptions& options) {
  begin_remote_rank();
  if (options.remote.given) {
    options.remote.hosts = refuse_check.need(
        named_hosts(options.remote.list, options.remote.file, process_environment()));
    options.remote.words = words_to_pass_on();
    options.remote.timeout_s = options.timeout_s;
    options.remote.hold_output = options.as_json;
    throw CLI::RuntimeError(refuse_check.need(run_on_hosts(options.remote)));
  }
  const auto place = refuse_check.need(detect_launcher(process_environment(), options.rendezvous));
  throw CLI::RuntimeError(place ? refuse_check.need(check_network(options, *place))
                                : check_alone(options));
}

}  // namespace

void add_check(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* check = app.add_subcommand(
      "check", "Look for what would keep a job from running well, and say what to do");
  add_remote_options(*check, options->remote);
  check->add_option("--rendezvous", options->rendezvous, "HOST:PORT of rank 0 under a launcher");
  check->add_option("--plugin", options->plugin, "Plugin to use, as in nccl-ha perf")
      ->capture_default_str();
  check
      ->add_option("--patience", options->patience_s,
                   "Seconds that a connection may take before it counts as failed")
      ->check(within(0.1, 3600.0, "seconds"))
      ->capture_default_str();
  check->add_option("--timeout", options->timeout_s, "Seconds for the whole check")
      ->check(within(1.0, 1e6, "seconds"))
      ->capture_default_str();
  check->add_flag("--json", options->as_json, "Print the findings as JSON");
  check->add_flag("--brief", options->brief, "Print one line: the verdict and the worst finding");
  check->add_flag("--require-plugin", options->require_plugin,
                  "NCCL must find this plugin on each host: anything else is an error");
  check->add_flag("--strict", options->strict, "Warnings count as errors for the exit status");
  check->footer(
      "Without --hosts and without a launcher only this host is looked at.\n"
      "Exit status: 0 nothing in the way, 1 errors found, 2 the check could not be made.");
  check->callback([options] { run(*options); });
}

}  // namespace nccl_ha::tools
