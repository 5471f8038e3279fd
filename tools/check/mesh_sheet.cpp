#include "tools/check/mesh_sheet.h"

#include <fmt/format.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "relay/mesh_links.h"
#include "runtime/fabric/provider.h"
#include "tools/check/sheet.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

constexpr uint32_t any_lifetime_ms = 1000;  ///< of a state that nobody keeps

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte one : bytes) {
    text += fmt::format("{:02x}", std::to_integer<unsigned>(one));
  }
  return text;
}

std::vector<std::byte> from_hex(std::string_view text) {
  std::vector<std::byte> bytes;
  for (size_t at = 0; at + 1 < text.size(); at += 2) {
    unsigned value = 0;
    std::from_chars(text.data() + at, text.data() + at + 2, value, 16);
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

/// Of an interface that is there; 0: it is not.
unsigned flags_of(const std::string& interface) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strncpy(request.ifr_name, interface.c_str(), IFNAMSIZ - 1);
  const bool known = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  if (fd >= 0) {
    close(fd);
  }
  return known ? static_cast<unsigned short>(request.ifr_flags) : 0;
}

MeshPort port_of(const fabric::NetInterface& interface) {
  MeshPort port;
  port.name = interface.name;
  port.ifindex = static_cast<uint32_t>(interface.ifindex);
  port.mtu = interface.mtu;
  port.speed_mbps = interface.speed_mbps;
  port.addressed = !interface.addresses.empty();
  for (const IpAddress& address : interface.addresses) {
    if (!address.link_local() && !address.loopback()) {
      port.addresses.push_back(fmt::format("{}/{}", address.text(), address.prefix_len));
      port.networks.push_back(network_of(address));
    }
  }
  return port;
}

/// Those of NICs, also ones that are down, and functions of NIC ports without an address.
std::vector<MeshPort> list_ports(const std::vector<fabric::NetInterface>& all) {
  std::vector<MeshPort> ports;
  for (const fabric::NetInterface& one : all) {
    if (!one.loopback && one.leads_to <= fabric::LinkClass::pair) {
      ports.push_back(port_of(one));
    }
  }
  for (const PortFunction& function : list_port_functions()) {
    auto port = std::find_if(ports.begin(), ports.end(),
                             [&](const MeshPort& one) { return one.name == function.interface; });
    if (port == ports.end()) {
      MeshPort made;
      made.name = function.interface;
      made.ifindex = function.ifindex;
      made.mtu = function.mtu;
      made.speed_mbps = function.speed_mbps;
      ports.push_back(std::move(made));
      port = std::prev(ports.end());
    }
    port->nic = function.port.switch_id;
    port->nic_port = function.port.port_name;
  }
  return ports;
}

std::string why_no_part(const Config& config) {
  if (config.mesh_relay == "off") {
    return "HA_NCCL_MESH_RELAY=off";
  }
  if (!config.mesh_enable_relay) {
    return "HA_NCCL_MESH_ENABLE_RELAY=0";
  }
  return fabric::fabric_is_forced(config) ? "HA_NCCL_FABRIC=" + config.fabric : "";
}

json to_json(const MeshPort& port) {
  return {{"name", port.name},
          {"ifindex", port.ifindex},
          {"enabled", port.enabled},
          {"link", port.link},
          {"addressed", port.addressed},
          {"in_mesh", port.in_mesh},
          {"is_device", port.is_device},
          {"mtu_bytes", port.mtu},
          {"speed_mbps", port.speed_mbps},
          {"nic", port.nic},
          {"nic_port", port.nic_port},
          {"addresses", port.addresses},
          {"networks", port.networks}};
}

MeshPort port_from_json(const json& from) {
  MeshPort port;
  port.name = from.at("name");
  port.ifindex = from.at("ifindex");
  port.enabled = from.at("enabled");
  port.link = from.at("link");
  port.addressed = from.at("addressed");
  port.in_mesh = from.at("in_mesh");
  port.is_device = from.at("is_device");
  port.mtu = from.at("mtu_bytes");
  port.speed_mbps = from.at("speed_mbps");
  port.nic = from.at("nic");
  port.nic_port = from.at("nic_port");
  port.addresses = from.at("addresses").get<std::vector<std::string>>();
  port.networks = from.at("networks").get<std::vector<std::string>>();
  return port;
}

}  // namespace

std::vector<relay::LinkState> states_of(const relay::Topology& topology) {
  std::vector<relay::LinkState> states;
  for (uint32_t node = 0; node < topology.nodes().size(); ++node) {
    const relay::TopologyNode& host = topology.nodes()[node];
    relay::LinkState state{host.id, 1, any_lifetime_ms, host.relays, host.name, host.addresses, {}};
    for (const relay::TopologyLink& link : topology.links(node)) {
      state.links.push_back(
          {topology.nodes()[link.node].id, link.interface, link.peer_interface, link.speed_mbps});
    }
    states.push_back(std::move(state));
  }
  return states;
}

json to_json(const MeshSheet& sheet) {
  json states = json::array();
  for (const relay::LinkState& state : sheet.states) {
    states.push_back(hex(encode(state)));
  }
  json one_way = json::array();
  for (const OneWay& one : sheet.one_way) {
    one_way.push_back({one.interface, relay::number(one.node), one.peer_interface});
  }
  json ports = json::array();
  for (const MeshPort& port : sheet.ports) {
    ports.push_back(to_json(port));
  }
  return {{"error", sheet.error},
          {"origin", static_cast<int>(sheet.origin)},
          {"self", relay::number(sheet.self)},
          {"states", std::move(states)},
          {"one_way", std::move(one_way)},
          {"ports", std::move(ports)},
          {"takes_no_part", sheet.takes_no_part},
          {"ifname", sheet.ifname},
          {"expected", sheet.expected},
          {"relays_max", sheet.relays_max},
          {"udp_port", sheet.udp_port},
          {"has_key", sheet.has_key}};
}

Result<MeshSheet> mesh_sheet_from_json(const json& from) {
  try {
    MeshSheet sheet;
    sheet.error = from.at("error");
    const int origin = from.at("origin");
    sheet.origin = static_cast<MeshSight::Origin>(std::clamp(origin, 0, 2));
    sheet.self = relay::NodeId{from.at("self").get<uint64_t>()};
    for (const json& one : from.at("states")) {
      auto state = relay::decode_link_state(from_hex(one.get<std::string>()));
      if (!state) {
        return state.error();
      }
      sheet.states.push_back(std::move(*state));
    }
    for (const json& one : from.at("one_way")) {
      sheet.one_way.push_back({one.at(0), relay::NodeId{one.at(1).get<uint64_t>()}, one.at(2)});
    }
    for (const json& one : from.at("ports")) {
      sheet.ports.push_back(port_from_json(one));
    }
    sheet.takes_no_part = from.at("takes_no_part");
    sheet.ifname = from.at("ifname");
    sheet.expected = from.at("expected");
    sheet.relays_max = from.at("relays_max");
    sheet.udp_port = from.at("udp_port");
    sheet.has_key = from.at("has_key");
    return sheet;
  } catch (const json::exception& error) {
    return fail(Errc::internal,
                fmt::format("what a host tells of its cables cannot be read: {}", error.what()));
  }
}

MeshSheet make_mesh_sheet(const Config& config, const std::vector<fabric::NetInterface>& all,
                          const std::vector<std::string>& devices, const Result<MeshSight>& sight) {
  MeshSheet sheet;
  sheet.ports = list_ports(all);
  std::vector<fabric::NetInterface> as_if_up = all;
  for (fabric::NetInterface& one : as_if_up) {
    one.up = true;
  }
  const auto chosen = relay::select_mesh_interfaces(as_if_up, config.mesh_ifname);
  for (MeshPort& port : sheet.ports) {
    const unsigned flags = flags_of(port.name);
    port.enabled = (flags & IFF_UP) != 0;
    port.link = port.enabled && (flags & IFF_RUNNING) != 0;
    port.in_mesh = std::any_of(chosen.begin(), chosen.end(),
                               [&](const auto& one) { return one.name == port.name; });
    port.is_device = std::find(devices.begin(), devices.end(), port.name) != devices.end();
  }
  sheet.takes_no_part = why_no_part(config);
  sheet.ifname = config.mesh_ifname;
  sheet.expected = config.mesh_topology;
  sheet.relays_max = static_cast<uint64_t>(config.mesh_max_hops);
  sheet.udp_port = static_cast<uint64_t>(config.mesh_port);
  sheet.has_key = !config.mesh_key_file.empty();
  if (!sight) {
    sheet.error = sight.error().message();
    return sheet;
  }
  sheet.origin = sight->origin;
  sheet.self = sight->self;
  sheet.one_way = sight->one_way;
  sheet.states = states_of(sight->topology);
  return sheet;
}

}  // namespace nccl_ha::tools
