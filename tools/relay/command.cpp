// nccl-ha relay: discovery and the relay node of this host.
#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "relay/discovery_actor.h"
#include "relay/link_sockets.h"
#include "relay/mesh_routes.h"
#include "relay/mesh_settings.h"
#include "relay/provider_hops.h"
#include "relay/relay_node.h"
#include "runtime/base/random.h"
#include "runtime/engine/engine.h"
#include "runtime/fabric/provider.h"
#include "tools/commands.h"
#include "tools/common/refusal.h"

namespace nccl_ha::tools {
namespace {

constexpr Refusal refuse_relay{"nccl-ha relay", 1};

/// SIGTERM and SIGINT as a descriptor, for all threads that begin later.
int block_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  const int fd = signalfd(-1, &set, SFD_CLOEXEC);
  if (fd < 0) {
    refuse_relay(fail(Errc::system, "cannot wait for signals", errno));
  }
  return fd;
}

std::vector<fabric::NetInterface> own_interfaces(const std::string& spec) {
  const auto all = fabric::list_interfaces();
  return all ? relay::select_mesh_interfaces(*all, spec) : std::vector<fabric::NetInterface>();
}

void serve(const Config& config) {
  const auto timing = refuse_relay.need(relay::discovery_timing(config));
  const auto own = own_interfaces(config.mesh_ifname);
  if (own.empty()) {
    refuse_relay(fail(Errc::invalid_argument,
                      "no interface with cables to neighbours is up (NCCL_MESH_IFNAME)"));
  }
  const auto port = static_cast<uint16_t>(config.mesh_port);
  relay::LinkSockets::Options sockets;
  sockets.port = port;
  sockets.peers = refuse_relay.need(relay::parse_mesh_peers(config.mesh_peers));
  auto links = refuse_relay.need(relay::LinkSockets::open(sockets, nullptr));
  const int signals = block_signals();

  Config hops_config = config;
  hops_config.fabric = "datagram";
  const auto provider = refuse_relay.need(fabric::Provider::make(hops_config, own, 1));
  relay::ProviderHops hops(*provider);
  const auto board = std::make_shared<relay::TopologyBoard>();
  relay::MeshRoutes routes(board, relay::route_options(config), port);
  // The relay node tells when it listens.
  const auto identity =
      relay::mesh_identity(own, false, static_cast<uint32_t>(os_random_u64() | 1));
  // One worker: all sessions of a host share its cables, and a thread fills those.
  Config engine_config = config;
  engine_config.use_progress_thread = true;
  engine_config.progress_threads = 1;
  const auto engine = refuse_relay.need(Engine::start(engine_config));
  relay::DiscoveryActor::Options discovery;
  discovery.identity = identity;
  discovery.timing = timing;
  discovery.links = std::move(links);
  discovery.interfaces = [spec = config.mesh_ifname] { return own_interfaces(spec); };
  discovery.board = board;
  const ActorId announcer = refuse_relay.need(
      engine->worker(0).adopt(std::make_unique<relay::DiscoveryActor>(std::move(discovery))));
  if (config.mesh_enable_relay) {
    refuse_relay.need(engine->worker(0).adopt(std::make_unique<relay::RelayNode>(
        hops, routes, relay::relay_options(config, identity.node), std::to_string(port),
        [&worker = engine->worker(0), announcer](bool relays) {
          worker.post({announcer, relay::DiscoveryActor::relays, relays ? 1U : 0U});
        })));
  }
  fmt::print("relay node {} on port {}, {} interface{}\n", relay::text(identity.node), port,
             own.size(), own.size() == 1 ? "" : "s");
  std::fflush(stdout);
  signalfd_siginfo told{};
  while (read(signals, &told, sizeof told) < 0 && errno == EINTR) {
  }
  close(signals);
  // The engine's end says goodbye to neighbours and ends of paths.
}

}  // namespace

void add_relay(CLI::App& app) {
  CLI::App* relay = app.add_subcommand(
      "relay", "Discovery and the relay node of this host, until SIGTERM or SIGINT");
  relay->footer(
      "Set by NCCL_MESH_* (nccl-ha info --env). There is no authentication yet: whoever is on one "
      "of the cables can relay through this host.");
  relay->callback([] {
    std::vector<std::string> warnings;
    auto config = load_config(Environment{}, &warnings);
    for (const std::string& warning : warnings) {
      fmt::print(stderr, "nccl-ha relay: warning: {}\n", warning);
    }
    if (!config) {
      refuse_relay(config.error());
    }
    serve(*config);
  });
}

}  // namespace nccl_ha::tools
