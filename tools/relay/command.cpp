// nccl-ha relay: discovery and the relay node of this host.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "runtime/base/config.h"
#include "tools/agent/keys.h"
#include "tools/commands.h"
#include "tools/common/output.h"
#include "tools/common/refusal.h"
#include "tools/relay/ask_relay.h"
#include "tools/relay/relay_process.h"

namespace nccl_ha::tools {
namespace {

constexpr Refusal refuse_relay{"nccl-ha relay", 2};

struct RelayCommandOptions {
  bool as_json = false;
  std::string key_file;
};

Config relay_config() {
  std::vector<std::string> warnings;
  auto config = load_config(Environment{}, &warnings);
  for (const std::string& warning : warnings) {
    fmt::print(stderr, "nccl-ha relay: warning: {}\n", warning);
  }
  return refuse_relay.need(std::move(config));
}

void show_relay(const RelayCommandOptions& options) {
  const std::string point = relay_config().mesh_page;
  const auto status = refuse_relay.need(ask_relay(point));
  if (options.as_json) {
    print_document(document("relay status", status));
  } else {
    print_relay(status);
  }
}

}  // namespace

void add_relay(CLI::App& app) {
  auto options = std::make_shared<RelayCommandOptions>();
  CLI::App* relay = app.add_subcommand(
      "relay", "Discovery and the relay node of this host, until SIGTERM or SIGINT");
  relay->require_subcommand(0, 1);
  relay->footer(
      "Set by HA_NCCL_MESH_* (nccl-ha info --env). Without HA_NCCL_MESH_KEY_FILE whoever is on one "
      "of "
      "the "
      "cables can relay through this host.");
  relay->callback([relay] {
    if (!relay->get_subcommands().empty()) {
      return;
    }
    if (auto ended = run_relay(relay_config()); !ended) {
      refuse_relay(ended.error());
    }
  });

  CLI::App* status = relay->add_subcommand("status", "What the relay node of this host does");
  status->add_flag("--json", options->as_json, "As JSON");
  status->callback([options] { show_relay(*options); });

  CLI::App* key = relay->add_subcommand("make-key", "Make a file with a key for the cluster");
  key->add_option("file", options->key_file, "It must not be there yet")->required();
  key->callback([options] {
    if (auto made = TelemetryKeys::make(options->key_file); !made) {
      refuse_relay(made.error());
    }
  });
}

}  // namespace nccl_ha::tools
