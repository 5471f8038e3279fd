// nccl-ha lab: networks to break, out of namespaces.
#include "tools/commands.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/common/output.h"
#include "tools/common/refusal.h"
#include "tools/lab/namespaces.h"
#include "tools/lab/run_options.h"
#include "tools/lab/supervisor.h"
#include "tools/lab/verbs.h"

namespace nccl_ha::tools {
namespace {

using namespace lab;
using nlohmann::json;

/// What the subcommands' options are parsed into.
struct LabOptions {
  RunOptions run;
  bool as_json = false;
  // verbs
  Request request;
  std::string lab;
  std::string host;
  std::vector<std::string> command;  ///< of enter
};

constexpr Refusal refuse_lab{"nccl-ha lab", status_lab_broken};  ///< where a command was to run
constexpr Refusal refuse_request{"nccl-ha lab", 2};

void run_namespaces(const RunOptions& options) {
  Topology topology = refuse_lab.need(parse_topology(options.topology));
  swap_cables(topology, options, refuse_lab);
  SupervisorOptions supervised = supervisor_options(topology, options, refuse_lab);
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
    fmt::print(stderr, "lab '{}': {}\n", lab.name, to_text(options.request));
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
      refuse_lab(fail(
          Errc::invalid_usage,
          fmt::format("host {} is an emulated machine, which cannot be entered", options.host)));
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

}  // namespace

void add_lab(CLI::App& app) {
  auto options = std::make_shared<LabOptions>();
  CLI::App* lab = app.add_subcommand("lab", "Hosts and links to try faults on, without hardware");
  lab->require_subcommand(1);

  CLI::App* run = lab->add_subcommand("run", "Run a command on hosts made of network namespaces");
  run->add_option("topology", options->run.topology, "See below")->required();
  add_run_options(*run, options->run);
  run->footer("Topologies:\n" + topologies_help());
  run->callback([options] { run_namespaces(options->run); });

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
