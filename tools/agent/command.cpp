// nccl-ha agent: the transport agent of a host, and what belongs to it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "runtime/base/config.h"
#include "runtime/base/log.h"
#include "runtime/engine/engine.h"
#include "tools/agent/agent.h"
#include "tools/agent/ask_agent.h"
#include "tools/agent/keys.h"
#include "tools/agent/settings.h"
#include "tools/agent/simulated_switch.h"
#include "tools/commands.h"
#include "tools/common/output.h"
#include "tools/common/refusal.h"
#include "tools/common/within.h"

namespace nccl_ha::tools {
namespace {

constexpr Refusal refuse_agent{"nccl-ha agent", 2};

struct AgentOptions {
  std::string settings;
  std::string directory;
  bool check = false;
  bool quiet = false;
  bool as_json = false;
  std::string key_file;
  // simulate-switch
  std::vector<std::string> script;
  std::vector<std::string> agents = {"127.0.0.1:7471"};
  std::string listen = "127.0.0.1:7472";
  double every_ms = 1;
  double linger_s = 1;
  double loss = 0;
  double noise = 0;
};

/// Where a service manager or a terminal sees it; it adds the time, if anybody wants it.
void log_to_stderr(void* context, LogLevel level, const char* file, int line, const char* text) {
  (void)context;
  (void)file;
  (void)line;
  const char* kind = level == LogLevel::error  ? "error: "
                     : level == LogLevel::warn ? "warning: "
                                               : "";
  std::fprintf(stderr, "%s%s\n", kind, text);
}

void run(const AgentOptions& options) {
  set_log_level(options.quiet ? LogLevel::warn : LogLevel::info);
  set_log_sink(log_to_stderr, nullptr);
  AgentSettings settings = refuse_agent.need(AgentSettings::read(options.settings));
  if (!options.directory.empty()) {
    settings.directory = options.directory;
    settings.directory_given = true;
  }
  std::error_code gone;
  const bool missing =
      !options.settings.empty() && !std::filesystem::exists(options.settings, gone);
  if (options.check && missing) {
    refuse_agent(
        fail(Errc::invalid_argument,
             fmt::format("{} is not there; an agent goes by the defaults then", options.settings)));
  }
  if (options.check) {
    fmt::print("the settings are good\n");
    return;
  }
  if (missing) {
    NHA_LOG_INFO("agent: {} is not there; the defaults are in force", options.settings);
  }
  const int status = refuse_agent.need(run_agent(options.settings, settings));
  if (status != 0) {
    throw CLI::RuntimeError(status);
  }
}

void show_status(const AgentOptions& options) {
  std::string directory = options.directory;
  if (directory.empty()) {
    directory = refuse_agent.need(load_config(Environment(), nullptr)).agent_dir;
  }
  const nlohmann::json status = refuse_agent.need(ask_agent(directory));
  if (options.as_json) {
    print_document(document("agent status", status));
  } else {
    print_agent(status);
  }
}

/// Each --script is a file's name or the steps themselves.
std::vector<SwitchStep> read_switch_script(const AgentOptions& options) {
  std::string text;
  for (const std::string& part : options.script) {
    std::ifstream file(part);
    if (file) {
      text.append(std::istreambuf_iterator<char>(file), {});
    } else {
      text += part;
    }
    text += '\n';
  }
  return refuse_agent.need(parse_switch_script(text));
}

void simulate_switch(const AgentOptions& options) {
  SimulatedSwitch::Options made;
  made.script = read_switch_script(options);
  for (const std::string& agent : options.agents) {
    made.agents.push_back(refuse_agent.need(parse_point(agent)));
  }
  made.listen = refuse_agent.need(parse_point(options.listen));
  if (!options.key_file.empty()) {
    made.keys = refuse_agent.need(TelemetryKeys::read(options.key_file));
  }
  made.every = Duration(static_cast<int64_t>(options.every_ms * 1e6));
  made.linger = Duration(static_cast<int64_t>(options.linger_s * 1e9));
  made.loss = options.loss;
  made.noise = options.noise;
  made.quiet = options.quiet;
  std::promise<Result<void>> ending;
  auto ended = ending.get_future();
  made.finish = [&ending](Result<void> how) { ending.set_value(std::move(how)); };
  Config config;
  config.counters_dir = "";
  config.idle_spin_us = 0;
  config.idle_yield_us = 0;
  const auto engine = refuse_agent.need(Engine::start(config));
  if (auto adopted = engine->worker(0).adopt(std::make_unique<SimulatedSwitch>(std::move(made)));
      !adopted) {
    refuse_agent(adopted.error());
  }
  if (const Result<void> how = ended.get(); !how) {
    refuse_agent(how.error());
  }
}

void add_simulate_switch(CLI::App& agent, const std::shared_ptr<AgentOptions>& options) {
  CLI::App* command = agent.add_subcommand(
      "simulate-switch", "Play a switch: tell agents congestion by a script, over UDP");
  command
      ->add_option("script", options->script,
                   "Steps '0s sup 0; 2s sup 200; 4s sup 255; 5s sup 0', or a file of such lines: "
                   "TIME RAIL LEVEL [SOURCE DESTINATION]")
      ->required();
  command->add_option("--to", options->agents, "ADDRESS:PORT of an agent; more than one may be")
      ->capture_default_str();
  command->add_option("--listen", options->listen, "Where agents tell of flows and NICs")
      ->capture_default_str();
  command->add_option("--keys", options->key_file, "File of keys; without it there are no tags");
  command->add_option("--every", options->every_ms, "Milliseconds between datagrams")
      ->check(within(0.05, 60000.0, "ms"))
      ->capture_default_str();
  command->add_option("--linger", options->linger_s, "Seconds to go on behind the last step")
      ->check(within(0.0, 1e6, "seconds"))
      ->capture_default_str();
  command->add_option("--loss", options->loss, "Part of the datagrams that is not sent")
      ->check(within(0.0, 1.0));
  command->add_option("--noise", options->noise, "Added to each level, up to so much either way")
      ->check(within(0.0, 255.0));
  command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
  command->callback([options] { simulate_switch(*options); });
}

}  // namespace

void add_agent(CLI::App& app) {
  auto options = std::make_shared<AgentOptions>();
  CLI::App* agent = app.add_subcommand(
      "agent", "The transport agent of this host: how flows are split over two rails");
  agent->require_subcommand(0, 1);
  agent->add_option("--settings", options->settings, "File of settings, in JSON (docs/agent.md)");
  agent->add_option("--dir", options->directory,
                    "Where its socket and hints are (default: HA_NCCL_AGENT_DIR)");
  agent->add_flag("--check", options->check, "Only say whether the settings are good");
  agent->add_flag("-q,--quiet", options->quiet, "Log errors and warnings only");
  agent->callback([agent, options] {
    if (agent->get_subcommands().empty()) {
      run(*options);
    }
  });

  CLI::App* status = agent->add_subcommand("status", "What the agent of this host knows");
  status->add_flag("--json", options->as_json, "As JSON");
  status->add_option("--dir", options->directory,
                     "Where its socket is (default: HA_NCCL_AGENT_DIR)");
  status->callback([options] { show_status(*options); });

  add_simulate_switch(*agent, options);

  CLI::App* key =
      agent->add_subcommand("make-key", "Make a file with a key to authenticate telemetry with");
  key->add_option("file", options->key_file, "It must not be there yet")->required();
  key->callback([options] {
    if (auto made = TelemetryKeys::make(options->key_file); !made) {
      refuse_agent(made.error());
    }
  });
}

}  // namespace nccl_ha::tools
