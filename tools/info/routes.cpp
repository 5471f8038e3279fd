#include "tools/info/routes.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "relay/mesh_settings.h"
#include "relay/shape.h"
#include "runtime/base/whole_file.h"
#include "tools/common/cabling.h"
#include "tools/common/mesh_sight.h"
#include "tools/common/output.h"
#include "tools/common/refusal.h"
#include "tools/info/drawing.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

constexpr Refusal refuse_routes{"nccl-ha info --routes", 2};

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
  return options.relay ? fmt::format("{} hosts in between, HA_NCCL_MESH_MAX_HOPS allows {}",
                                     entry.distance - 1, options.relays_max)
                       : std::string("no cable, and HA_NCCL_MESH_ENABLE_RELAY=0");
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

json cabling_json(const std::vector<Miscabling>& miscabled) {
  json out = json::array();
  for (const Miscabling& one : miscabled) {
    out.push_back({{"what", one.what}, {"remedy", one.remedy}});
  }
  return out;
}

}  // namespace

void show_routes(const Config& config, const RoutesOptions& options) {
  const auto expected = refuse_routes.need(relay::parse_shape(config.mesh_topology));
  const auto all = refuse_routes.need(fabric::list_interfaces());
  const auto wait =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.wait_s));
  const MeshSight found = refuse_routes.need(look_at_mesh(config, all, wait));
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
  const auto miscabled = judge_cabling(found.topology, *self, list_port_functions());
  if (!options.svg_file.empty()) {
    refuse_routes.need(write_file(options.svg_file, draw_svg(found.topology, *self)));
  }
  if (options.as_json) {
    const json out{{"self", relay::text(found.self)},        {"source", found.source},
                   {"shape", relay::to_text(shape)},         {"findings", wrong},
                   {"nodes", topology_json(found.topology)}, {"routes", table_json(table)},
                   {"cabling", cabling_json(miscabled)}};
    print_document(document("info --routes", out));
    return;
  }
  fmt::print("{}: {} host{}, {}\n\n{}", relay::to_text(shape), hosts, hosts == 1 ? "" : "s",
             found.source, draw_text(found.topology, *self));
  for (const std::string& one : wrong) {
    fmt::print("\nwarning: {}\n", one);
  }
  for (const Miscabling& one : miscabled) {
    fmt::print("\nwarning: {}\n  do: {}\n", one.what, one.remedy);
  }
  print_table(found.topology, table, limits);
}

}  // namespace nccl_ha::tools
