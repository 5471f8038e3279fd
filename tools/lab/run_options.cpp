#include "tools/lab/run_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tools/common/plugin_search.h"
#include "tools/common/within.h"

namespace nccl_ha::tools::lab {
namespace {

void prepend(const char* variable, const std::string& entry, const char* otherwise) {
  const char* old = getenv(variable);
  const std::string rest = old == nullptr || *old == '\0' ? otherwise : old;
  setenv(variable, rest.empty() ? entry.c_str() : (entry + ":" + rest).c_str(), 1);
}

std::vector<size_t> chosen_hosts(const Topology& topology, const std::string& on,
                                 const Refusal& refuse) {
  std::vector<size_t> hosts;
  if (on.empty()) {
    for (size_t host = 0; host < topology.hosts.size(); ++host) {
      hosts.push_back(host);
    }
    return hosts;
  }
  for (const std::string& name : CLI::detail::split(on, ',')) {
    const size_t host = refuse.need(topology.host(name));
    if (std::find(hosts.begin(), hosts.end(), host) != hosts.end()) {
      refuse(fail(Errc::invalid_argument, fmt::format("--on names {} twice", name)));
    }
    hosts.push_back(host);
  }
  return hosts;
}

/// Each --script is a file's name or the steps themselves.
std::vector<ScriptStep> read_script(const RunOptions& options, const Refusal& refuse) {
  std::string text;
  for (const std::string& part : options.script) {
    std::ifstream file(part);
    if (file) {
      text.append(std::istreambuf_iterator<char>(file), {});
    } else if (part.find(' ') == std::string::npos) {
      refuse(fail(Errc::invalid_argument,
                  fmt::format("--script {}: neither a file nor steps like '2s cut rail0'", part)));
    } else {
      text += part;
    }
    text += '\n';
  }
  return refuse.need(parse_script(text));
}

}  // namespace

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

void swap_cables(Topology& topology, const RunOptions& options, const Refusal& refuse) {
  for (const std::string& pair : options.swaps) {
    const size_t comma = pair.find(',');
    if (comma == std::string::npos) {
      refuse(fail(Errc::invalid_argument,
                  fmt::format("--swap {}: two interfaces, as in h3.rail0,h3.rail1", pair)));
    }
    if (auto made = topology.swap(pair.substr(0, comma), pair.substr(comma + 1)); !made) {
      refuse(made.error());
    }
  }
}

SupervisorOptions supervisor_options(const Topology& topology, const RunOptions& options,
                                     const Refusal& refuse) {
  SupervisorOptions made;
  made.command = options.command;
  made.hosts = chosen_hosts(topology, options.on, refuse);
  made.script = read_script(options, refuse);
  for (const ScriptStep& step : made.script) {
    // A name that is wrong is found before anything starts.
    if (step.request.verb == Verb::kill) {
      refuse.need(topology.host(step.request.target));
    } else if (!step.request.target.empty()) {
      refuse.need(topology.find(step.request.target, step.request.side));
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
      refuse(fail(Errc::invalid_argument, fmt::format("--env {}: no name", pair)));
    }
    const std::string name = pair.substr(0, equals);
    const char* value = getenv(name.c_str());
    if (equals == std::string::npos && value == nullptr) {
      refuse(fail(Errc::invalid_argument, fmt::format("--env {}: it is not set here", name)));
    }
    made.environment[name] = equals == std::string::npos ? value : pair.substr(equals + 1);
  }
  return made;
}

std::string lab_name(const RunOptions& options, const Topology& topology) {
  return options.name.empty() ? fmt::format("{}-{}", topology.name, getpid()) : options.name;
}

void add_run_options(CLI::App& command, RunOptions& options) {
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

}  // namespace nccl_ha::tools::lab
