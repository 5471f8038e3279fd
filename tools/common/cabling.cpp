#include "tools/common/cabling.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include "relay/shape.h"
#include "runtime/fabric/port_halves.h"

namespace nccl_ha::tools {
namespace {

namespace fs = std::filesystem;

/// RoCE's largest MTU of 4096 with its headers needs an Ethernet MTU above this.
constexpr uint32_t mtu_for_roce = 4200;

int64_t number_in(const fs::path& file) {
  std::ifstream in(file);
  int64_t value = 0;
  in >> value;
  return in ? value : 0;
}

bool is_pci(const fs::path& interface) {
  std::error_code none;
  const fs::path subsystem = fs::canonical(interface / "device/subsystem", none);
  return !none && subsystem.filename() == "pci";
}

/// One port of the host: its functions, and whom each hears.
struct NicPort {
  struct Function {
    const PortFunction* own = nullptr;
    std::vector<const relay::TopologyLink*> cables;
  };
  std::string name;
  std::vector<Function> functions;
  /// Each end of its cables hears one other end: there is no switch between.
  bool cabled_directly = true;

  bool hears() const {
    return std::any_of(functions.begin(), functions.end(),
                       [](const Function& one) { return !one.cables.empty(); });
  }
  std::set<uint32_t> neighbours() const {
    std::set<uint32_t> all;
    for (const Function& one : functions) {
      for (const relay::TopologyLink* cable : one.cables) {
        all.insert(cable->node);
      }
    }
    return all;
  }
};

/// How many other ends an interface of a host hears.
ptrdiff_t ends_heard(const relay::Topology& topology, uint32_t node, uint32_t interface) {
  const auto links = topology.links(node);
  return std::count_if(links.begin(), links.end(),
                       [&](const auto& link) { return link.interface == interface; });
}

std::vector<NicPort> ports_of(const relay::Topology& topology, uint32_t self,
                              std::span<const PortFunction> functions) {
  std::map<std::pair<std::string, std::string>, NicPort> ports;
  for (const PortFunction& one : functions) {
    NicPort& port = ports[{one.port.switch_id, one.port.port_name}];
    port.name = one.port.port_name;
    NicPort::Function function{&one, {}};
    for (const relay::TopologyLink& link : topology.links(self)) {
      if (link.interface == one.ifindex) {
        function.cables.push_back(&link);
      }
    }
    port.cabled_directly =
        port.cabled_directly &&
        std::all_of(function.cables.begin(), function.cables.end(),
                    [&](const relay::TopologyLink* cable) {
                      return ends_heard(topology, self, one.ifindex) == 1 &&
                             ends_heard(topology, cable->node, cable->peer_interface) == 1;
                    });
    port.functions.push_back(std::move(function));
  }
  std::vector<NicPort> out;
  out.reserve(ports.size());
  for (auto& [key, port] : ports) {
    out.push_back(std::move(port));
  }
  return out;
}

/// Of the end here, and of the cable as both ends see it.
int64_t speed_of(const NicPort::Function& function) {
  int64_t speed = function.own->speed_mbps;
  for (const relay::TopologyLink* cable : function.cables) {
    if (cable->speed_mbps != 0) {
      speed = speed == 0 ? cable->speed_mbps : std::min<int64_t>(speed, cable->speed_mbps);
    }
  }
  return speed;
}

void judge_port(const NicPort& port, std::vector<Miscabling>& found) {
  int64_t fastest = 0;
  for (const NicPort::Function& one : port.functions) {
    fastest = std::max(fastest, one.cables.empty() ? 0 : speed_of(one));
  }
  for (const NicPort::Function& one : port.functions) {
    const std::string& name = one.own->interface;
    const std::string of =
        fmt::format("{}, one of {} ways to port {},", name, port.functions.size(), port.name);
    if (one.cables.empty() && !one.own->carrier) {
      found.push_back(
          {fmt::format("{} is down, though another one works: half of the port is idle", of),
           fmt::format("ip link set {0} up, and look at its configuration; where it "
                       "stays without a carrier, plug the cable in anew",
                       name)});
    } else if (one.cables.empty()) {
      found.push_back(
          {fmt::format("{} hears no neighbour, though another one does: half of the port is idle",
                       of),
           fmt::format("let {} have a link-local address of IPv6 (or one of IPv4) on both hosts, "
                       "and HA_NCCL_MESH_IFNAME name it too",
                       name)});
    } else if (speed_of(one) != 0 && speed_of(one) < fastest) {
      found.push_back(
          {fmt::format("{} has {} Mbit/s, another one {}", of, speed_of(one), fastest),
           fmt::format("compare `ethtool {}` on both hosts: cable, speed and FEC", name)});
    }
    if (!one.cables.empty() && one.own->mtu < mtu_for_roce) {
      found.push_back({fmt::format("{} has an MTU of {}: RoCE's packets get a quarter of their "
                                   "largest size or less",
                                   name, one.own->mtu),
                       fmt::format("ip link set {} mtu 9000, on both hosts", name)});
    }
  }
}

}  // namespace

std::vector<PortFunction> list_port_functions(const std::string& classes) {
  std::vector<PortFunction> found;
  std::error_code gone;
  fs::directory_iterator entry(classes + "/net", gone);
  for (; !gone && entry != fs::directory_iterator(); entry.increment(gone)) {
    PortFunction one;
    one.interface = entry->path().filename();
    one.port = fabric::read_port_identity(one.interface, classes);
    if (one.port.switch_id.empty() || !fabric::is_port_name(one.port.port_name) ||
        !is_pci(entry->path())) {
      continue;
    }
    one.ifindex = static_cast<uint32_t>(number_in(entry->path() / "ifindex"));
    one.mtu = static_cast<uint32_t>(number_in(entry->path() / "mtu"));
    one.speed_mbps = std::max<int64_t>(number_in(entry->path() / "speed"), 0);
    one.carrier = number_in(entry->path() / "carrier") == 1;
    found.push_back(std::move(one));
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.interface < b.interface; });
  return found;
}

std::vector<Miscabling> judge_cabling(const relay::Topology& topology, uint32_t self,
                                      std::span<const PortFunction> functions) {
  std::vector<Miscabling> found;
  const std::vector<NicPort> ports = ports_of(topology, self, functions);
  std::map<uint32_t, std::vector<std::string>> ways;
  for (const NicPort& port : ports) {
    if (port.hears()) {
      judge_port(port, found);
    }
    if (!port.cabled_directly) {
      continue;  // behind a switch all ports lead to all hosts
    }
    for (const uint32_t neighbour : port.neighbours()) {
      ways[neighbour].push_back(port.name);
    }
  }
  const size_t hosts = topology.component(self).size();
  for (const auto& [neighbour, names] : ways) {
    if (names.size() > 1 && hosts > 2) {
      found.push_back(
          {fmt::format("ports {} and {} both lead to {}, though there are {} hosts", names[0],
                       names[1], relay::label(topology.nodes()[neighbour]), hosts),
           "in a ring each host has a cable to the one before and one to the one behind it: move "
           "one of these"});
    }
  }
  return found;
}

}  // namespace nccl_ha::tools
