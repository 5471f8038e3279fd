#include "tools/common/mesh_sight.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "relay/link_sockets.h"
#include "relay/mesh_settings.h"
#include "relay/topology_file.h"
#include "runtime/base/secret.h"

namespace nccl_ha::tools {
namespace {

constexpr auto answer_within = std::chrono::seconds(2);

/// Discovery for a moment, without an engine.
class ShortDiscovery final : private relay::MeshLinks::Sink {
 public:
  ShortDiscovery(relay::LinkSockets& sockets, const std::vector<fabric::NetInterface>& own,
                 const relay::Discovery::Timing& timing, const std::shared_ptr<KeyFile>& key)
      : sockets_(sockets),
        discovery_(relay::mesh_identity(own, false,
                                        static_cast<uint32_t>(kernel_secrets().draw().told() | 1)),
                   timing, kernel_secrets().draw().told(), sockets),
        settled_(2 * timing.neighbours.hello) {
    discovery_.set_keys(key ? key->current() : nullptr, clock_.now());
    sockets_.use(own);
    discovery_.set_interfaces(relay::as_mesh_interfaces(own), clock_.now());
  }
  /// Until nothing has changed for two hellos, at most `limit`.
  void run(Duration limit) {
    const Instant end = clock_.now() + limit;
    Instant changed = clock_.now();
    uint64_t revision = 0;
    for (Instant now = changed; now < end && now - changed < settled_; now = clock_.now()) {
      discovery_.tick(now);
      wait_until(std::min({discovery_.next_deadline(), end, changed + settled_}), now);
      sockets_.receive(*this, SIZE_MAX);
      if (revision != discovery_.revision()) {
        revision = discovery_.revision();
        changed = clock_.now();
      }
    }
  }
  MeshSight sight() {
    MeshSight found{discovery_.topology(clock_.now()), discovery_.identity().node,
                    "found out now; this host does not relay, as no relay node runs on it"};
    discovery_.leave(clock_.now());
    return found;
  }

 private:
  void on_packet(uint32_t interface, const fabric::SocketAddress& from, bool asked_here,
                 std::span<const std::byte> packet) override {
    if (!asked_here) {
      discovery_.receive(interface, from, packet, clock_.now());
    }
  }
  void wait_until(Instant until, Instant now) {
    std::array<pollfd, 2> waiting{};
    for (size_t i = 0; i < waiting.size(); ++i) {
      waiting[i] = {sockets_.wait_fds()[i], POLLIN, 0};
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
    poll(waiting.data(), waiting.size(), static_cast<int>(std::max<int64_t>(left, 0)));
  }

  SteadyClock clock_;
  relay::LinkSockets& sockets_;
  relay::Discovery discovery_;
  Duration settled_;
};

Result<MeshSight> sight_of_file(const Config& config,
                                const std::vector<fabric::NetInterface>& all) {
  auto topology = relay::read_topology_file(config.mesh_topology_file);
  if (!topology) {
    return topology.error();
  }
  std::vector<IpAddress> addresses;
  for (const fabric::NetInterface& one : all) {
    if (!one.loopback) {
      addresses.insert(addresses.end(), one.addresses.begin(), one.addresses.end());
    }
  }
  const auto self = relay::find_host(*topology, addresses);
  if (!self) {
    return fail(Errc::invalid_argument,
                fmt::format("{}: no node has an address of this host, or several have: "
                            "write its addresses behind its name",
                            config.mesh_topology_file));
  }
  MeshSight found;
  found.self = topology->nodes()[*self].id;
  found.topology = std::move(*topology);
  found.source = config.mesh_topology_file;
  return found;
}

}  // namespace

Result<MeshSight> ask_for_mesh(const Config& config) {
  MeshSight found;
  auto states =
      relay::ask_this_host(static_cast<uint16_t>(config.mesh_port), answer_within, &found.self);
  if (!states) {
    return states.error();
  }
  found.topology = relay::Topology::make(std::move(*states));
  found.source = "the relay node of this host";
  return found;
}

Result<MeshSight> look_at_mesh(const Config& config, const std::vector<fabric::NetInterface>& all,
                               Duration wait) {
  if (!config.mesh_topology_file.empty()) {
    return sight_of_file(config, all);
  }
  const auto timing = relay::discovery_timing(config);
  auto peers = relay::parse_mesh_peers(config.mesh_peers);
  auto key = relay::cluster_key(config);
  for (const Error* wrong : {timing ? nullptr : &timing.error(), peers ? nullptr : &peers.error(),
                             key ? nullptr : &key.error()}) {
    if (wrong != nullptr) {
      return *wrong;
    }
  }
  const std::vector<fabric::NetInterface> own =
      relay::select_mesh_interfaces(all, config.mesh_ifname);
  if (own.empty()) {
    return fail(Errc::invalid_argument,
                "no interface with cables to neighbours is up (NCCL_MESH_IFNAME)");
  }
  relay::LinkSockets::Options options;
  options.port = static_cast<uint16_t>(config.mesh_port);
  options.peers = std::move(*peers);
  bool taken = false;
  auto sockets = relay::LinkSockets::open(options, &taken);
  if (taken) {
    return ask_for_mesh(config);
  }
  if (!sockets) {
    return sockets.error();
  }
  ShortDiscovery discovery(**sockets, own, *timing, *key);
  discovery.run(wait);
  return discovery.sight();
}

}  // namespace nccl_ha::tools
