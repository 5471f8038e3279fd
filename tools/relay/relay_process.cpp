#include "tools/relay/relay_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <future>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "relay/discovery_actor.h"
#include "relay/link_sockets.h"
#include "relay/mesh_client.h"
#include "relay/mesh_links.h"
#include "relay/mesh_routes.h"
#include "relay/mesh_settings.h"
#include "relay/provider_hops.h"
#include "relay/relay_node.h"
#include "relay/ticket_office.h"
#include "runtime/base/log.h"
#include "runtime/base/secret.h"
#include "runtime/engine/engine.h"
#include "runtime/fabric/provider.h"
#include "runtime/streams/listening.h"
#include "tools/agent/http_port.h"
#include "tools/common/process.h"
#include "tools/relay/ask_relay.h"
#include "tools/relay/port_wait.h"
#include "tools/relay/rdma_devices.h"
#include "tools/relay/relay_keeper.h"
#include "tools/relay/relay_view.h"

namespace nccl_ha::tools {
namespace {

constexpr Duration ports_free_within = std::chrono::seconds(5);
/// A relay node answers within milliseconds.
constexpr Duration answers_within = std::chrono::milliseconds(100);

/// Another node on this host knows the mesh and tells of it: that one keeps the port.  A process of
/// a job that has it gives it up, and does not answer any more.
bool told_by_another(uint16_t port) {
  relay::ask_for_place(port);
  return relay::ask_relay_node(port, answers_within).ok();
}

/// SIGTERM and SIGINT as a descriptor, for all threads that begin later.
Result<Fd> relay_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  Fd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) {
    return fail(Errc::system, "cannot wait for signals", errno);
  }
  return fd;
}

/// The word that the node is to end.  Any thread.
class Ending {
 public:
  enum class How : uint8_t { for_good, to_begin_anew };
  void tell(How how) {
    for_good_ = for_good_ || how == How::for_good;
    std::call_once(once_, [&] { told_.set_value(); });
  }
  void wait() { told_.get_future().get(); }
  /// Whatever was told first: a signal may come while a node ends that is to begin anew.
  How how() const { return for_good_ ? How::for_good : How::to_begin_anew; }

 private:
  std::once_flag once_;
  std::promise<void> told_;
  std::atomic<bool> for_good_{false};
};

/// Who makes a view complete when the worker is there.
class ViewBegins final : public Actor {
 public:
  explicit ViewBegins(RelayView& view) : view_(view) {}
  const char* name() const override { return "relay-view"; }
  void start(Context& context) override {
    view_.context = &context;
    view_.started = context.now();
  }
  void on(const Message& message) override { (void)message; }

 private:
  RelayView& view_;
};

/// What lives as long as the node.
struct RelayParts {
  std::unique_ptr<fabric::Provider> provider;
  std::unique_ptr<relay::ProviderHops> hops;
  std::shared_ptr<relay::TopologyBoard> board = std::make_shared<relay::TopologyBoard>();
  std::unique_ptr<relay::MeshRoutes> routes;
  std::shared_ptr<KeyFile> key;
  std::shared_ptr<relay::JobKeys> job;  ///< without a key of the cluster: what jobs here lend
  RelayView view;
  uint32_t incarnation = static_cast<uint32_t>(kernel_secrets().draw().told() | 1);
  RdmaDevices devices{"/sys/class/infiniband"};
  Ending ending;
  /// A node that has them has cables too, so that it can begin.
  bool outdated(const std::string& ifname) {
    if (!devices.changed() || (view.node != nullptr && !view.node->sessions().empty())) {
      return false;
    }
    const auto cables = relay::list_mesh_interfaces(ifname);
    return cables && !cables->empty();
  }
};

/// Who has the port, where that is a node of this host: its page says.
Error of_another_node(const Config& config, const Error& error) {
  const auto other = ask_relay(config.mesh_page);
  return other
             ? fail(Errc::invalid_usage, fmt::format("a relay node (pid {}) runs on this host: {}",
                                                     other->value("pid", 0), error.message()))
             : error;
}

Result<std::unique_ptr<relay::DiscoveryActor>> make_discovery(const Config& config, PortWait& ports,
                                                              RelayParts& parts) {
  relay::DiscoveryActor::Options options;
  auto timing = relay::discovery_timing(config);
  if (!timing) {
    return timing.error();
  }
  options.timing = *timing;
  const auto own = relay::list_mesh_interfaces(config.mesh_ifname);
  if (!own) {
    return own.error();
  }
  if (own->empty()) {
    return fail(Errc::invalid_argument,
                "no interface with cables to neighbours is up (HA_NCCL_MESH_IFNAME)");
  }
  relay::LinkSockets::Options sockets;
  sockets.port = static_cast<uint16_t>(config.mesh_port);
  auto peers = relay::parse_mesh_peers(config.mesh_peers);
  if (!peers) {
    return peers.error();
  }
  sockets.peers = std::move(*peers);
  auto links = ports.open([&] { return relay::LinkSockets::open(sockets, nullptr); },
                          [&] { return told_by_another(sockets.port); });
  if (!links) {
    return links.error().sys == EADDRINUSE ? of_another_node(config, links.error()) : links.error();
  }
  options.links = std::move(*links);
  // The relay node tells when it listens.
  options.identity = relay::mesh_identity(*own, false, parts.incarnation);
  options.interfaces = [spec = config.mesh_ifname] { return relay::list_mesh_interfaces(spec); };
  options.board = parts.board;
  options.key = parts.key;
  options.job = parts.job;
  parts.view.self = options.identity.node;
  Config hops_config = config;
  if (config.fabric == "relay") {
    hops_config.fabric = "auto";  // hops lead to neighbours
  }
  auto provider = fabric::Provider::make(hops_config, *own, 1);
  if (!provider) {
    return provider.error();
  }
  parts.provider = std::move(*provider);
  parts.hops = std::make_unique<relay::ProviderHops>(*parts.provider);
  parts.routes = std::make_unique<relay::MeshRoutes>(parts.board, relay::route_options(config),
                                                     static_cast<uint16_t>(config.mesh_port));
  parts.view.routes = parts.routes.get();
  return std::make_unique<relay::DiscoveryActor>(std::move(options));
}

Result<std::unique_ptr<HttpPort>> make_page(const Config& config, PortWait& ports,
                                            const RelayView& view) {
  if (config.mesh_page.empty()) {
    return std::unique_ptr<HttpPort>();
  }
  auto point = parse_point(config.mesh_page);
  if (!point) {
    return fail(Errc::invalid_argument, "HA_NCCL_MESH_PAGE: " + point.error().what);
  }
  auto listening =
      ports.open([&] { return open_listener(point->address, std::to_string(point->port)); },
                 [] { return false; });
  if (!listening) {
    return fail(Errc::system,
                fmt::format("the page cannot be served at {} (HA_NCCL_MESH_PAGE)", point->text()),
                listening.error().sys);
  }
  return std::make_unique<HttpPort>(
      listening->fd, *point, [&view](const std::string& path) { return relay_answer(view, path); });
}

/// Of a host that relays; the node's id.
Result<ActorId> adopt_node(Worker& worker, const Config& config, RelayParts& parts,
                           ActorId discovery) {
  relay::RelayOptions options = relay::relay_options(config, parts.view.self);
  options.key = parts.key;
  options.job = parts.job;
  auto node = std::make_unique<relay::RelayNode>(
      *parts.hops, *parts.routes, options, std::to_string(config.mesh_port),
      [&worker, discovery](bool relays) {
        worker.post({discovery, relay::DiscoveryActor::relays, relays ? 1U : 0U});
      },
      [&parts] { parts.ending.tell(Ending::How::for_good); });
  parts.view.node = node.get();
  return worker.adopt(std::move(node));
}

Result<void> adopt_rest(Worker& worker, const Config& config, const RelayParts& parts,
                        RelayKeeper::Options keeper, std::unique_ptr<HttpPort> page) {
  auto office = worker.adopt(std::make_unique<relay::TicketOffice>(
      relay::TicketOffice::Options{static_cast<uint16_t>(config.mesh_port), parts.view.self,
                                   parts.incarnation, parts.key, parts.job, std::nullopt}));
  if (!office) {
    return office.error();
  }
  if (page) {
    if (auto adopted = worker.adopt(std::move(page)); !adopted) {
      return adopted.error();
    }
  }
  auto adopted = worker.adopt(std::make_unique<RelayKeeper>(std::move(keeper)));
  return adopted ? Result<void>() : Result<void>(adopted.error());
}

/// What a node, which uses the devices that there are when it begins, ends for.
Result<Ending::How> run_node(const Config& config) {
  RelayParts parts;
  auto key = relay::cluster_key(config);
  if (!key) {
    return key.error();
  }
  parts.key = std::move(*key);
  if (!parts.key) {
    parts.job = std::make_shared<relay::JobKeys>();
    parts.job->set_open(true);
  }
  parts.view.keyed = parts.key != nullptr;
  relay::warn_without(parts.key);
  SteadyClock clock;
  PortWait ports(clock, ports_free_within);
  auto discovery = make_discovery(config, ports, parts);
  if (!discovery) {
    return discovery.error();
  }
  auto page = make_page(config, ports, parts.view);
  if (!page) {
    return page.error();
  }
  // Not before: while it waits for ports, a signal is to end it.
  auto signals = relay_signals();
  if (!signals) {
    return signals.error();
  }
  // One worker: all sessions of a host share its cables, and a thread fills those.
  Config engine_config = config;
  engine_config.use_progress_thread = true;
  engine_config.progress_threads = 1;
  // Who yields its processor beside busy threads gets it back after a time slice of theirs; who
  // sleeps is woken by the packet that it waits for.
  if (!config.origins.contains("idle_yield_us")) {
    engine_config.idle_yield_us = 0;
  }
  auto engine = Engine::start(engine_config);
  if (!engine) {
    return engine.error();
  }
  Worker& worker = (*engine)->worker(0);
  parts.view.discovery = discovery->get();
  if (auto adopted = worker.adopt(std::make_unique<ViewBegins>(parts.view)); !adopted) {
    return adopted.error();
  }
  const auto announcer = worker.adopt(std::move(*discovery));
  if (!announcer) {
    return announcer.error();
  }
  RelayKeeper::Options keeper;
  if (config.mesh_enable_relay) {
    const auto node = adopt_node(worker, config, parts, *announcer);
    if (!node) {
      return node.error();
    }
    keeper.node = *node;
  }
  keeper.signals = signals->release();
  keeper.manager = ServiceManager::from_environment();
  keeper.summary = "relay node " + relay::text(parts.view.self);
  keeper.finish = [&parts] { parts.ending.tell(Ending::How::for_good); };
  keeper.outdated = [&parts, ifname = config.mesh_ifname] { return parts.outdated(ifname); };
  keeper.begin_anew = [&parts] { parts.ending.tell(Ending::How::to_begin_anew); };
  if (auto adopted = adopt_rest(worker, config, parts, std::move(keeper), std::move(*page));
      !adopted) {
    return adopted.error();
  }
  fmt::print("relay node {} on port {}{}{}\n", relay::text(parts.view.self), config.mesh_port,
             parts.key ? ", for hosts with the cluster's key" : "",
             config.mesh_page.empty() ? "" : ", its page is at http://" + config.mesh_page + "/");
  std::fflush(stdout);
  parts.ending.wait();
  // The engine's end says goodbye to neighbours and ends of paths.
  engine->reset();
  return parts.ending.how();
}

}  // namespace

Result<void> run_relay(const Config& config) {
  for (;;) {
    const auto ended = run_node(config);
    if (!ended) {
      return ended.error();
    }
    if (*ended == Ending::How::for_good) {
      return {};
    }
    NHA_LOG_WARN(
        "the RDMA devices of this host are other ones than before: the relay node begins "
        "anew with them");
  }
}

}  // namespace nccl_ha::tools
