// nccl-ha lab: networks to break, out of namespaces or of emulated machines with RDMA.
#include "tools/commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/common/output.h"
#include "tools/common/plugin_search.h"
#include "tools/common/refusal.h"
#include "tools/common/within.h"
#include "tools/lab/guests.h"
#include "tools/lab/namespaces.h"
#include "tools/lab/rdma_check.h"
#include "tools/lab/supervisor.h"
#include "tools/lab/verbs.h"

namespace nccl_ha::tools {
namespace {

using namespace lab;
using nlohmann::json;

/// What the subcommands' options are parsed into.
struct LabOptions {
  std::string topology = "pair";
  std::string name;
  std::string on;
  std::vector<std::string> environment;
  std::vector<std::string> script;
  std::vector<std::string> swaps;
  std::vector<std::string> command;
  double timeout_s = 600;
  unsigned mtu = 4200;
  bool quiet = false;
  bool as_json = false;
  // roce only
  size_t guests = 0;
  size_t rails = 0;
  bool check = true;
  GuestOptions guest;
  // verbs
  Request request;
  std::string lab;
  std::string host;
};

constexpr Refusal refuse_lab{"nccl-ha lab", status_lab_broken};  ///< where a command was to run
constexpr Refusal refuse_request{"nccl-ha lab", 2};

void prepend(const char* variable, const std::string& entry, const char* otherwise) {
  const char* old = getenv(variable);
  const std::string rest = old == nullptr || *old == '\0' ? otherwise : old;
  setenv(variable, rest.empty() ? entry.c_str() : (entry + ":" + rest).c_str(), 1);
}

/// In a command, `nccl-ha` means this very program, and the plugin `ha` the one beside it.
void put_own_directory_first() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return;
  }
  const auto folder = self.parent_path();
  prepend("PATH", folder, "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
  if (const auto plugin = plugin_beside(folder)) {
    prepend("LD_LIBRARY_PATH", std::filesystem::path(plugin->file).parent_path(), "");
  }
}

std::vector<size_t> chosen_hosts(const Topology& topology, const std::string& on) {
  std::vector<size_t> hosts;
  if (on.empty()) {
    for (size_t host = 0; host < topology.hosts.size(); ++host) {
      hosts.push_back(host);
    }
    return hosts;
  }
  for (const std::string& name : CLI::detail::split(on, ',')) {
    const size_t host = refuse_lab.need(topology.host(name));
    if (std::find(hosts.begin(), hosts.end(), host) != hosts.end()) {
      refuse_lab(fail(Errc::invalid_argument, fmt::format("--on names {} twice", name)));
    }
    hosts.push_back(host);
  }
  return hosts;
}

void swap_cables(Topology& topology, const LabOptions& options) {
  for (const std::string& pair : options.swaps) {
    const size_t comma = pair.find(',');
    if (comma == std::string::npos) {
      refuse_lab(fail(Errc::invalid_argument,
                      fmt::format("--swap {}: two interfaces, as in h3.rail0,h3.rail1", pair)));
    }
    if (auto made = topology.swap(pair.substr(0, comma), pair.substr(comma + 1)); !made) {
      refuse_lab(made.error());
    }
  }
}

/// Each --script is a file's name or the steps themselves.
std::vector<ScriptStep> read_script(const LabOptions& options) {
  std::string text;
  for (const std::string& part : options.script) {
    std::ifstream file(part);
    if (file) {
      text.append(std::istreambuf_iterator<char>(file), {});
    } else if (part.find(' ') == std::string::npos) {
      refuse_lab(
          fail(Errc::invalid_argument,
               fmt::format("--script {}: neither a file nor steps like '2s cut rail0'", part)));
    } else {
      text += part;
    }
    text += '\n';
  }
  return refuse_lab.need(parse_script(text));
}

SupervisorOptions supervisor_options(const Topology& topology, const LabOptions& options) {
  SupervisorOptions made;
  made.command = options.command;
  made.hosts = chosen_hosts(topology, options.on);
  made.script = read_script(options);
  for (const ScriptStep& step : made.script) {
    // A name that is wrong is found before anything starts.
    if (step.request.verb == Verb::kill) {
      refuse_lab.need(topology.host(step.request.target));
    } else if (!step.request.target.empty()) {
      refuse_lab.need(topology.find(step.request.target, step.request.side));
    }
  }
  made.timeout_s = options.timeout_s;
  made.quiet = options.quiet;
  if (getenv("NCCL_SOCKET_IFNAME") == nullptr) {
    made.environment["NCCL_SOCKET_IFNAME"] = "=mgmt";
  }
  for (const std::string& pair : options.environment) {
    const size_t equals = pair.find('=');
    if (equals == 0) {
      refuse_lab(fail(Errc::invalid_argument, fmt::format("--env {}: no name", pair)));
    }
    const std::string name = pair.substr(0, equals);
    const char* value = getenv(name.c_str());
    if (equals == std::string::npos && value == nullptr) {
      refuse_lab(fail(Errc::invalid_argument, fmt::format("--env {}: it is not set here", name)));
    }
    made.environment[name] = equals == std::string::npos ? value : pair.substr(equals + 1);
  }
  return made;
}

std::string lab_name(const LabOptions& options, const Topology& topology) {
  return options.name.empty() ? fmt::format("{}-{}", topology.name, getpid()) : options.name;
}

void run_namespaces(const LabOptions& options) {
  Topology topology = refuse_lab.need(parse_topology(options.topology));
  swap_cables(topology, options);
  SupervisorOptions supervised = supervisor_options(topology, options);
  // The management network is there for rendezvous; data belongs on the rails.
  if (getenv("HA_NCCL_IFNAME") == nullptr) {
    supervised.environment.emplace("HA_NCCL_IFNAME", "^mgmt,lo");
  }
  put_own_directory_first();
  int status = 0;
  {
    Supervisor supervisor(topology,
                          refuse_lab.need(LabDirectory::create(lab_name(options, topology))),
                          std::move(supervised));
    Namespaces hosts(topology, options.mtu);
    status = supervisor.run(hosts, nullptr);
  }
  end_process(status);
}

void run_guests(LabOptions& options, bool topology_given) {
  if (topology_given && (options.guests > 0 || options.rails > 0)) {
    refuse_lab(fail(Errc::invalid_argument,
                    "a topology says how many guests and rails there are; give it, or --guests and "
                    "--rails"));
  }
  Topology topology = topology_given
                          ? refuse_lab.need(parse_topology(options.topology))
                          : refuse_lab.need(make_rails(options.guests > 0 ? options.guests : 2,
                                                       options.rails > 0 ? options.rails : 2));
  if (topology.hosts.size() > guests_max) {
    refuse_lab(
        fail(Errc::invalid_argument, fmt::format("a lab of guests has 1 to {} of them, not {}",
                                                 guests_max, topology.hosts.size())));
  }
  swap_cables(topology, options);
  SupervisorOptions supervised = supervisor_options(topology, options);
  // Datagrams may use the management network when all else is gone; for a mesh it is no cable.
  if (getenv("HA_NCCL_IFNAME") == nullptr && getenv("NCCL_MESH_IFNAME") == nullptr) {
    supervised.environment.emplace("NCCL_MESH_IFNAME", "^mgmt,lo");
  }
  put_own_directory_first();
  // Fetching a kernel needs the network that the lab is about to leave.
  options.guest.kernel = refuse_lab.need(prepare_kernel(options.guest.cache));
  options.guest.mtu = options.mtu;
  int status = 0;
  {
    Supervisor supervisor(topology,
                          refuse_lab.need(LabDirectory::create(lab_name(options, topology))),
                          std::move(supervised));
    Guests guests(topology, supervisor.directory().path(), options.guest);
    RdmaCheck check(topology);
    status = supervisor.run(guests, options.check ? &check : nullptr);
  }
  end_process(status);
}

void print_lab(const json& lab) {
  fmt::print("{} ({})\n", lab["lab"].get<std::string>(), lab["topology"].get<std::string>());
  for (const json& host : lab["hosts"]) {
    std::string interfaces;
    for (const auto& [name, address] : host["interfaces"].items()) {
      interfaces += fmt::format("  {} {}", name, address.get<std::string>());
    }
    fmt::print("  {}{}{}\n", host["name"].get<std::string>(), interfaces,
               host.value("killed", false) ? "  (killed)" : "");
  }
  fmt::print("\n  {:<12} {:<16} {:>10} {:>14} {:>9}  {}\n", "link", "direction", "frames", "bytes",
             "dropped", "state");
  for (const json& link : lab["links"]) {
    for (const json& way : link["directions"]) {
      fmt::print(
          "  {:<12} {:<16} {:>10} {:>14} {:>9}  {}\n", link["name"].get<std::string>(),
          fmt::format("{} > {}", way["from"].get<std::string>(), way["to"].get<std::string>()),
          way["frames"].get<uint64_t>(), way["bytes"].get<uint64_t>(),
          way["dropped"].get<uint64_t>(), way["state"].get<std::string>());
    }
  }
}

void ask(const LabOptions& options) {
  const KnownLab lab = refuse_request.need(running_lab(options.lab));
  const json answer = refuse_request.need(ask_lab(lab, to_json(options.request)));
  if (options.request.verb != Verb::show) {
    return;
  }
  if (options.as_json) {
    print_document(document("lab show", answer));
  } else {
    print_lab(answer);
  }
}

void enter(const LabOptions& options) {
  const KnownLab lab = refuse_lab.need(running_lab(options.lab));
  Request show;
  show.verb = Verb::show;
  const json answer = refuse_lab.need(ask_lab(lab, to_json(show)));
  for (const json& host : answer["hosts"]) {
    if (host["name"] != options.host) {
      continue;
    }
    if (host.value("killed", false)) {
      refuse_lab(fail(Errc::invalid_usage,
                      fmt::format("host {} of lab '{}' was killed", options.host, lab.name)));
    }
    if (!host.contains("process")) {
      refuse_lab(
          fail(Errc::invalid_usage,
               "an emulated guest cannot be entered; run what you need with `lab roce … -- CMD`"));
    }
    std::vector<std::string> command = options.command;
    if (command.empty()) {
      const char* shell = getenv("SHELL");
      command = {shell != nullptr && *shell != '\0' ? shell : "/bin/sh"};
    }
    put_own_directory_first();
    refuse_lab(enter_host(host["process"].get<pid_t>(), command));
  }
  refuse_lab(fail(Errc::invalid_argument,
                  fmt::format("lab '{}' has no host '{}'", lab.name, options.host)));
}

void list_labs() {
  for (const KnownLab& lab : known_labs()) {
    fmt::print("{:<24} {}\n", lab.name,
               lab.running ? "running" : "crashed; `nccl-ha lab clean` removes what it left");
  }
}

void add_running(CLI::App& command, LabOptions& options) {
  command.add_option("--name", options.name,
                     "Name of the lab (default: the topology and a number)");
  command.add_option("--on", options.on, "Hosts that run the command: h1,h3 (default: all)");
  command
      .add_option("--script", options.script,
                  "Steps while the command runs: '2s cut rail0; 5s heal rail0', or a file of "
                  "such lines")
      ->allow_extra_args(false);
  command
      .add_option("--swap", options.swaps,
                  "Two interfaces whose cables are in each other's switch: h3.rail0,h3.rail1")
      ->allow_extra_args(false);
  command
      .add_option("--env", options.environment, "NAME=VALUE for the command, or NAME as it is here")
      ->allow_extra_args(false);
  command.add_option("--mtu", options.mtu, "Bytes of the largest IP packet on all links")
      ->check(within(1280, 65000, "bytes"))
      ->capture_default_str();
  command.add_option("--timeout", options.timeout_s, "Seconds after which all is ended")
      ->check(within(1, 1000000, "seconds"))
      ->capture_default_str();
  command.add_flag("-q,--quiet", options.quiet, "Print only what the command prints, and errors");
  command.add_option("command", options.command, "Command and arguments, after --")->required();
}

}  // namespace

void add_lab(CLI::App& app) {
  auto options = std::make_shared<LabOptions>();
  CLI::App* lab = app.add_subcommand("lab", "Hosts and links to try faults on, without hardware");
  lab->require_subcommand(1);

  CLI::App* run = lab->add_subcommand("run", "Run a command on hosts made of network namespaces");
  run->add_option("topology", options->topology, "See below")->required();
  add_running(*run, *options);
  run->footer("Topologies:\n" + topologies_help());
  run->callback([options] { run_namespaces(*options); });

  CLI::App* roce = lab->add_subcommand("roce", "Run a command on emulated machines with Soft-RoCE");
  CLI::Option* topology = roce->add_option("--topology", options->topology, "Instead of a pair");
  roce->add_option("--guests", options->guests, "Machines, 1 to 5 (default 2)");
  roce->add_option("--rails", options->rails, "RDMA interfaces of each (default 2)");
  roce->add_option("--cpus", options->guest.cpus, "Processors of a guest")
      ->check(within(1, 16, "processors"))
      ->capture_default_str();
  roce->add_option("--memory", options->guest.memory_mib, "MiB of a guest")
      ->check(within(256, 65536, "MiB"))
      ->capture_default_str();
  roce->add_option("--share", options->guest.shared, "Directory that guests may write to")
      ->check(CLI::ExistingDirectory);
  roce->add_option("--cache", options->guest.cache, "Where the kernel is kept")
      ->capture_default_str();
  roce->add_flag("!--no-check", options->check, "Do not try the rails with ibv_rc_pingpong first");
  add_running(*roce, *options);
  roce->footer("Topologies:\n" + topologies_help());
  roce->callback([options, topology] { run_guests(*options, topology->count() > 0); });

  add_verbs(*lab, options->request);
  CLI::App* show = lab->add_subcommand("show", "Hosts, links, their state and counters");
  show->add_flag("--json", options->as_json, "As JSON");
  show->parse_complete_callback([options] { options->request.verb = Verb::show; });
  CLI::App* stop = lab->add_subcommand("stop", "End a lab");
  stop->parse_complete_callback([options] { options->request.verb = Verb::stop; });
  for (const char* name : {"cut", "heal", "slow", "lose", "mtu", "kill", "show", "stop"}) {
    CLI::App* verb = lab->get_subcommand(name);
    verb->add_option("--lab", options->lab, "Which lab, when several run");
    verb->callback([options] { ask(*options); });
  }

  CLI::App* in = lab->add_subcommand("enter", "A shell or a command inside a host of namespaces");
  in->add_option("host", options->host, "h1, h2, …")->required();
  in->add_option("command", options->command, "Instead of a shell, after --");
  in->add_option("--lab", options->lab, "Which lab, when several run");
  in->callback([options] { enter(*options); });

  lab->add_subcommand("list", "This user's labs")->callback([] { list_labs(); });
  CLI::App* clean = lab->add_subcommand("clean", "Remove what crashed labs left");
  clean->add_option("name", options->lab, "Only this lab's");
  clean->callback([options] {
    for (const std::string& name : remove_crashed_labs(options->lab)) {
      fmt::print("removed {}\n", name);
    }
  });
}

}  // namespace nccl_ha::tools
