#include "tools/info/routes.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "relay/link_sockets.h"
#include "relay/mesh_settings.h"
#include "relay/shape.h"
#include "relay/topology_file.h"
#include "runtime/base/random.h"
#include "tools/common/refusal.h"
#include "tools/info/drawing.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

constexpr Refusal refuse_routes{"nccl-ha info --routes", 1};

/// What is known, and how it came.
struct MeshSight {
  relay::Topology topology;
  relay::NodeId self{};
  std::string source;
};

/// Discovery for a moment, without an engine.
class ShortDiscovery final : private relay::MeshLinks::Sink {
 public:
  ShortDiscovery(relay::LinkSockets& sockets, const std::vector<fabric::NetInterface>& own,
                 const relay::Discovery::Timing& timing,
                 const std::shared_ptr<relay::ClusterKey>& key)
      : sockets_(sockets),
        discovery_(relay::mesh_identity(own, false, static_cast<uint32_t>(os_random_u64() | 1)),
                   timing, os_random_u64(), sockets),
        settled_(2 * timing.neighbours.hello) {
    discovery_.set_keys(key ? key->current() : nullptr);
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

MeshSight sight_of_file(const Config& config, const std::vector<fabric::NetInterface>& all) {
  MeshSight found;
  found.topology = refuse_routes.need(relay::read_topology_file(config.mesh_topology_file));
  found.source = config.mesh_topology_file;
  std::vector<IpAddress> addresses;
  for (const fabric::NetInterface& one : all) {
    if (!one.loopback) {
      addresses.insert(addresses.end(), one.addresses.begin(), one.addresses.end());
    }
  }
  const auto self = relay::find_host(found.topology, addresses);
  if (!self) {
    refuse_routes(fail(Errc::invalid_argument,
                       fmt::format("{}: no node has an address of this host, or several have: "
                                   "write its addresses behind its name",
                                   config.mesh_topology_file)));
  }
  found.self = found.topology.nodes()[*self].id;
  return found;
}

MeshSight sight_now(const Config& config, const std::vector<fabric::NetInterface>& all,
                    double wait_s) {
  const auto timing = refuse_routes.need(relay::discovery_timing(config));
  const std::vector<fabric::NetInterface> own =
      relay::select_mesh_interfaces(all, config.mesh_ifname);
  if (own.empty()) {
    refuse_routes(fail(Errc::invalid_argument,
                       "no interface with cables to neighbours is up (NCCL_MESH_IFNAME)"));
  }
  relay::LinkSockets::Options options;
  options.port = static_cast<uint16_t>(config.mesh_port);
  options.peers = refuse_routes.need(relay::parse_mesh_peers(config.mesh_peers));
  bool taken = false;
  auto sockets = relay::LinkSockets::open(options, &taken);
  if (taken) {
    MeshSight found;
    found.topology = relay::Topology::make(refuse_routes.need(
        relay::ask_this_host(options.port, std::chrono::seconds(2), &found.self)));
    found.source = "the relay node of this host";
    return found;
  }
  if (!sockets) {
    refuse_routes(sockets.error());
  }
  ShortDiscovery discovery(**sockets, own, timing, refuse_routes.need(relay::cluster_key(config)));
  discovery.run(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(wait_s)));
  return discovery.sight();
}

std::string way_text(const relay::Topology& topology, const relay::Route& route) {
  std::string out;
  for (size_t i = 1; i < route.nodes.size(); ++i) {
    out += (i > 1 ? " > " : "") + relay::label(topology.nodes()[*topology.find(route.nodes[i])]);
  }
  return out;
}

std::string why_none(const relay::RouteEntry& entry, const relay::RouteOptions& options) {
  if (entry.distance == 0) {
    return "no way over hosts that relay";
  }
  return options.relay ? fmt::format("{} hosts in between, NCCL_MESH_MAX_HOPS allows {}",
                                     entry.distance - 1, options.relays_max)
                       : std::string("no cable, and NCCL_MESH_ENABLE_RELAY=0");
}

void print_table(const relay::Topology& topology, const relay::RouteTable& table,
                 const relay::RouteOptions& options) {
  fmt::print("\n{:<20} {:>4} {:>10} {:>6}  {}\n", "to", "hops", "Gb/s", "share", "over");
  for (const relay::RouteEntry& entry : table.entries()) {
    const std::string name = relay::label(topology.nodes()[*topology.find(entry.destination)]);
    if (entry.routes.empty()) {
      fmt::print("{:<20} {:>4} {:>10} {:>6}  {}\n", name, "-", "-", "-", why_none(entry, options));
    }
    const std::vector<uint32_t> parts = relay::shares(entry);
    for (size_t i = 0; i < entry.routes.size(); ++i) {
      const relay::Route& route = entry.routes[i];
      const std::string share =
          i < parts.size() ? fmt::format("{:.0f}%", parts[i] * 100.0 / 1024) : "spare";
      const std::string speed =
          route.speed_mbps == 0 ? "-"
                                : fmt::format("{:g}", static_cast<double>(route.speed_mbps) / 1000);
      fmt::print("{:<20} {:>4} {:>10} {:>6}  {}\n", i == 0 ? name : "", route.hops(), speed, share,
                 way_text(topology, route));
    }
  }
}

json table_json(const relay::RouteTable& table) {
  json out = json::array();
  for (const relay::RouteEntry& entry : table.entries()) {
    json routes = json::array();
    const std::vector<uint32_t> parts = relay::shares(entry);
    for (size_t i = 0; i < entry.routes.size(); ++i) {
      json nodes = json::array();
      for (const relay::NodeId node : entry.routes[i].nodes) {
        nodes.push_back(relay::text(node));
      }
      routes.push_back({{"nodes", nodes},
                        {"hops", entry.routes[i].hops()},
                        {"speed_mbps", entry.routes[i].speed_mbps},
                        {"parts_per_1024", i < parts.size() ? parts[i] : 0}});
    }
    out.push_back(
        {{"to", relay::text(entry.destination)}, {"distance", entry.distance}, {"routes", routes}});
  }
  return out;
}

json topology_json(const relay::Topology& topology) {
  json nodes = json::array();
  for (uint32_t node = 0; node < topology.nodes().size(); ++node) {
    const relay::TopologyNode& host = topology.nodes()[node];
    json addresses = json::array();
    for (const IpAddress& address : host.addresses) {
      addresses.push_back(fmt::format("{}/{}", address.text(), address.prefix_len));
    }
    json cables = json::array();
    for (const relay::TopologyLink& link : topology.links(node)) {
      cables.push_back({{"to", relay::text(topology.nodes()[link.node].id)},
                        {"interface", link.interface},
                        {"peer_interface", link.peer_interface},
                        {"speed_mbps", link.speed_mbps}});
    }
    nodes.push_back({{"id", relay::text(host.id)},
                     {"name", host.name},
                     {"relays", host.relays},
                     {"addresses", addresses},
                     {"cables", cables}});
  }
  return nodes;
}

void write_svg(const std::string& file, const relay::Topology& topology, uint32_t self) {
  std::ofstream out(file);
  out << draw_svg(topology, self);
  out.close();
  if (!out) {
    refuse_routes(fail(Errc::system, fmt::format("cannot write {}", file), errno));
  }
}

}  // namespace

void show_routes(const Config& config, const RoutesOptions& options) {
  const auto expected = refuse_routes.need(relay::parse_shape(config.mesh_topology));
  const auto all = refuse_routes.need(fabric::list_interfaces());
  const MeshSight found = config.mesh_topology_file.empty() ? sight_now(config, all, options.wait_s)
                                                            : sight_of_file(config, all);
  const auto self = found.topology.find(found.self);
  if (!self) {
    refuse_routes(fail(Errc::internal, "this host is not part of its own topology"));
  }
  const relay::RouteOptions limits = relay::route_options(config);
  const auto table = relay::RouteTable::make(found.topology, found.self, limits);
  const relay::Shape shape = relay::shape_of(found.topology, *self);
  const size_t hosts = found.topology.component(*self).size();
  const auto wrong =
      expected ? relay::findings(found.topology, *self, *expected) : std::vector<std::string>();
  if (!options.svg_file.empty()) {
    write_svg(options.svg_file, found.topology, *self);
  }
  if (options.as_json) {
    const json out{{"self", relay::text(found.self)},        {"source", found.source},
                   {"shape", relay::to_text(shape)},         {"findings", wrong},
                   {"nodes", topology_json(found.topology)}, {"routes", table_json(table)}};
    fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("{}: {} host{}, {}\n\n{}", relay::to_text(shape), hosts, hosts == 1 ? "" : "s",
             found.source, draw_text(found.topology, *self));
  for (const std::string& one : wrong) {
    fmt::print("\nwarning: {}\n", one);
  }
  print_table(found.topology, table, limits);
}

}  // namespace nccl_ha::tools
