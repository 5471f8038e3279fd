// nccl-ha check: is this host, and the network between hosts, fit for a job?
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/check/findings.h"
#include "tools/check/hosts.h"
#include "tools/check/pairs.h"
#include "tools/commands.h"
#include "tools/common/environment.h"
#include "tools/common/refusal.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

/// Exit statuses.
constexpr int found_errors = 1;
constexpr int could_not_check = 2;
/// Ranks of another run must not be taken for ours ("check" in ASCII).
constexpr uint64_t cookie = 0x636865636B;
constexpr auto join_time = std::chrono::seconds(60);

struct CheckOptions {
  std::string hosts;
  RemoteOptions remote;
  std::string rendezvous;
  std::string plugin = "ha";
  double patience_s = 5;
  double timeout_s = 600;
  bool as_json = false;
  bool strict = false;
};

constexpr Refusal refuse_check{"nccl-ha check", could_not_check};

/// All that was found, on all hosts.
struct Report {
  std::vector<std::string> hosts;    ///< by rank
  std::vector<std::string> plugins;  ///< by rank: what NCCL would load there; empty: nothing
  std::vector<std::vector<Finding>> of_host;
  std::vector<PairResult> pairs;
  std::vector<Finding> of_network;

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

void print_findings(const std::vector<Finding>& findings) {
  for (const Level level : {Level::error, Level::warning, Level::hint}) {
    for (const Finding& finding : findings) {
      if (finding.level == level) {
        fmt::print("  {}: {}\n    do: {}\n", to_text(level), finding.what, finding.remedy);
      }
    }
  }
  if (findings.empty()) {
    fmt::print("  nothing to say\n");
  }
}

void print_report(const Report& report) {
  for (size_t rank = 0; rank < report.hosts.size(); ++rank) {
    fmt::print("host {}\n", report.hosts[rank]);
    if (!report.plugins[rank].empty()) {
      fmt::print("  {}\n", report.plugins[rank]);
    }
    print_findings(report.of_host[rank]);
  }
  if (report.hosts.size() > 1) {
    fmt::print("network: {} pairs of hosts and devices\n", report.pairs.size());
    fmt::print("  {:<24} {:<14} {:>12} {:>10}\n", "between", "device", "round trip", "bandwidth");
    for (const PairResult& pair : report.pairs) {
      const std::string who = report.hosts[pair.from] + " and " + report.hosts[pair.to];
      if (!pair.error.empty()) {
        fmt::print("  {:<24} {:<14} {:>23}\n", who, pair.device_name, "fails");
        continue;
      }
      fmt::print("  {:<24} {:<14} {:>9.1f} us {:>5.3f} GB/s\n", who, pair.device_name,
                 pair.round_trip_us, pair.gigabytes_per_s);
    }
    print_findings(report.of_network);
  } else {
    fmt::print(
        "network: not looked at; give --hosts, or start this with your launcher (srun, "
        "mpirun, torchrun)\n");
  }
  fmt::print("{} errors, {} warnings, {} hints\n", report.count(Level::error),
             report.count(Level::warning), report.count(Level::hint));
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
    hosts.push_back({{"name", report.hosts[rank]},
                     {"plugin", report.plugins[rank]},
                     {"findings", findings_json(report.of_host[rank])}});
  }
  json pairs = json::array();
  for (const PairResult& pair : report.pairs) {
    json entry = to_json(pair);
    entry["hosts"] = {report.hosts[pair.from], report.hosts[pair.to]};
    pairs.push_back(std::move(entry));
  }
  const json out{{"hosts", std::move(hosts)},
                 {"pairs", std::move(pairs)},
                 {"network", findings_json(report.of_network)},
                 {"ok", report.status(strict) == 0}};
  fmt::print("{}\n", out.dump(2, ' ', false, json::error_handler_t::replace));
}

/// Where NCCL finds none, a finding says so.
std::string found_plugin(const HostFacts& facts) {
  return facts.plugin.of_nccl ? facts.plugin.text() : "";
}

/// What every rank tells the first.
std::string rank_text(const HostFacts& facts, const std::vector<Finding>& findings, size_t devices,
                      const std::vector<PairResult>& pairs) {
  json all = json::array();
  for (const PairResult& pair : pairs) {
    all.push_back(to_json(pair));
  }
  const json text{{"host", facts.name},
                  {"plugin", found_plugin(facts)},
                  {"findings", findings_json(findings)},
                  {"devices", devices},
                  {"pairs", std::move(all)}};
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<Report> collect(const std::vector<std::string>& texts) {
  Report report;
  std::vector<PairResult> seen;
  std::vector<size_t> devices;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const json text = json::parse(texts[rank], nullptr, false);
    if (!text.is_object() || !text.contains("host") || !text["host"].is_string() ||
        !text.contains("plugin") || !text["plugin"].is_string() || !text.contains("findings") ||
        !text.contains("pairs") || !text.contains("devices") ||
        !text["devices"].is_number_unsigned()) {
      return fail(Errc::internal, fmt::format("what rank {} found cannot be read", rank));
    }
    report.hosts.push_back(text["host"]);
    report.plugins.push_back(text["plugin"]);
    report.of_host.emplace_back();
    devices.push_back(text["devices"]);
    for (const json& entry : text["findings"]) {
      if (auto finding = finding_from_json(entry)) {
        report.of_host.back().push_back(std::move(*finding));
      }
    }
    for (const json& entry : text["pairs"]) {
      auto pair = pair_from_json(entry);
      if (!pair || pair->from >= texts.size() || pair->to >= texts.size()) {
        return fail(Errc::internal, fmt::format("what rank {} found cannot be read", rank));
      }
      seen.push_back(std::move(*pair));
    }
  }
  report.pairs = merge(seen);
  report.of_network = judge(report.pairs, report.hosts);
  const std::vector<Finding> uneven = judge_device_counts(devices, report.hosts);
  report.of_network.insert(report.of_network.end(), uneven.begin(), uneven.end());
  return report;
}

/// This rank's part of a check between hosts.
Result<int> check_network(const CheckOptions& options, const LaunchedRank& place) {
  SteadyClock clock;
  const Instant start = clock.now();
  World::Options world_options;
  world_options.rank = place.rank;
  world_options.size = place.world_size;
  world_options.host = place.host;
  world_options.port = place.port;
  world_options.cookie = cookie;
  world_options.deadline = start + Duration(static_cast<int64_t>(options.timeout_s * 1e9));
  world_options.join_deadline = std::min(world_options.deadline, start + join_time);
  auto world = World::join(world_options);
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
  std::vector<Finding> findings = judge(*facts);
  const auto patience = Duration(static_cast<int64_t>(options.patience_s * 1e9));
  // A connection that hangs is to fail within the patience, unless the user says how long.
  setenv("HA_NCCL_CONNECT_TIMEOUT_MS",
         std::to_string(static_cast<int64_t>(options.patience_s * 1000)).c_str(), 0);
  set_plugin_log("", PluginLog::nothing);
  auto devices = checked_devices(*facts);
  if (!devices) {
    return give_up(devices.error());
  }
  // Setting up has several steps, each with that time limit.
  auto pairs = try_pairs(**world, options.plugin, *devices, 3 * patience);
  if (!pairs) {
    return give_up(pairs.error());
  }
  auto texts = (*world)->all_gather(rank_text(*facts, findings, devices->size(), *pairs));
  if (!texts) {
    return texts.error();
  }
  auto report = collect(*texts);
  if (!report) {
    return report.error();
  }
  if (place.rank == 0) {
    if (options.as_json) {
      print_json(*report, options.strict);
    } else {
      print_report(*report);
    }
  }
  // The same status on every host, so that a script may ask any of them.
  return report->status(options.strict);
}

int check_alone(const CheckOptions& options) {
  const HostFacts facts = refuse_check.need(look_at_host());
  Report report;
  report.hosts.push_back(facts.name);
  report.plugins.push_back(found_plugin(facts));
  report.of_host.push_back(judge(facts));
  if (options.as_json) {
    print_json(report, options.strict);
  } else {
    print_report(report);
  }
  return report.status(options.strict);
}

void run(CheckOptions& options) {
  if (!options.hosts.empty()) {
    options.remote.hosts = refuse_check.need(parse_hosts(options.hosts));
    auto& arguments = options.remote.arguments;
    arguments = {"--patience", fmt::format("{:g}", options.patience_s),
                 "--timeout",  fmt::format("{:g}", options.timeout_s),
                 "--plugin",   options.plugin};
    if (options.as_json) {
      arguments.emplace_back("--json");
    }
    if (options.strict) {
      arguments.emplace_back("--strict");
    }
    if (options.remote.program.empty()) {
      std::error_code error;
      options.remote.program = std::filesystem::read_symlink("/proc/self/exe", error);
    }
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
  check->add_option("--hosts", options->hosts,
                    "Hosts to try the network between, NAME or NAME=ADDRESS: a,b,c=10.0.0.3");
  check
      ->add_option("--ssh", options->remote.shell,
                   "What starts a command on a host; it is given HOST -- COMMAND")
      ->capture_default_str();
  check->add_option("--program", options->remote.program,
                    "nccl-ha on those hosts (default: where this one is)");
  check->add_option("--port", options->remote.port, "TCP port of the first host to meet at")
      ->check(CLI::Range(1024, 65000))
      ->capture_default_str();
  check->add_option("--rendezvous", options->rendezvous, "HOST:PORT of rank 0 under a launcher");
  check->add_option("--plugin", options->plugin, "Plugin to use, as in nccl-ha perf")
      ->capture_default_str();
  check
      ->add_option("--patience", options->patience_s,
                   "Seconds that a connection may take before it counts as failed")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  check->add_option("--timeout", options->timeout_s, "Seconds for the whole check")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  check->add_flag("--json", options->as_json, "Print the findings as JSON");
  check->add_flag("--strict", options->strict, "Warnings count as errors for the exit status");
  check->footer(
      "Without --hosts and without a launcher only this host is looked at.\n"
      "Exit status: 0 nothing in the way, 1 errors found, 2 the check could not be made.");
  check->callback([options] { run(*options); });
}

}  // namespace nccl_ha::tools
