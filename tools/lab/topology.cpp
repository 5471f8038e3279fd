#include "tools/lab/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "runtime/base/random.h"

namespace nccl_ha::tools::lab {
namespace {

/// Host numbers are the last part of an address and of a MAC address.
constexpr size_t hosts_max = 64;
constexpr size_t rails_max = 8;

std::string host_name(size_t host) { return fmt::format("h{}", host + 1); }
std::string rail_address(size_t net, size_t host) {
  return fmt::format("198.18.{}.{}", net, host + 1);
}

class Builder {
 public:
  Builder(std::string name, size_t hosts) {
    made_.name = std::move(name);
    for (size_t host = 0; host < hosts; ++host) {
      made_.hosts.push_back(host_name(host));
    }
  }

  size_t add_medium() { return made_.media++; }

  void cable(const std::string& name, size_t net, std::array<size_t, 2> hosts,
             const std::array<std::string, 2>& interfaces) {
    cable(name, name, hosts, interfaces,
          {rail_address(net, hosts[0]), rail_address(net, hosts[1])});
  }
  void cable(const std::string& name, const std::string& group, std::array<size_t, 2> hosts,
             const std::array<std::string, 2>& interfaces,
             const std::array<std::string, 2>& addresses) {
    Link link;
    link.name = name;
    link.group = group;
    link.medium = add_medium();
    for (size_t end = 0; end < 2; ++end) {
      link.ports[end] = add_port(hosts[end], interfaces[end], addresses[end], 24);
    }
    made_.links.push_back(link);
  }

  /// The ends of the last cable are PCI functions, each of a port of its host's NIC.
  void as_functions(const std::array<std::string, 2>& addresses,
                    const std::array<std::string, 2>& nic_ports) {
    for (size_t end = 0; end < 2; ++end) {
      Port& port = made_.ports[made_.links.back().ports[end]];
      port.pci_address = addresses[end];
      port.nic_port = nic_ports[end];
    }
  }

  void to_switch(size_t medium, const std::string& group, size_t host, const std::string& interface,
                 const std::string& address, unsigned prefix_len) {
    Link link;
    link.name = made_.hosts[host] + "." + interface;
    link.group = group;
    link.medium = medium;
    link.ports[0] = add_port(host, interface, address, prefix_len);
    made_.links.push_back(link);
  }

  Topology finish() {
    const size_t medium = add_medium();
    for (size_t host = 0; host < made_.hosts.size(); ++host) {
      to_switch(medium, "mgmt", host, "mgmt", made_.management_address(host), 24);
      made_.ports.back().management = true;
    }
    return std::move(made_);
  }

 private:
  size_t add_port(size_t host, const std::string& interface, const std::string& address,
                  unsigned prefix_len) {
    Port port;
    port.host = host;
    port.interface = interface;
    port.address = address;
    port.prefix_len = prefix_len;
    port.link = made_.links.size();
    made_.ports.push_back(port);
    return made_.ports.size() - 1;
  }

  Topology made_;
};

/// Neighbours joined by cables of their own; nothing leads from one cable to the next.
Topology make_chain(const std::string& name, size_t hosts, bool closed) {
  Builder builder(name, hosts);
  const size_t cables = closed ? hosts : hosts - 1;
  for (size_t i = 0; i < cables; ++i) {
    const size_t next = (i + 1) % hosts;
    builder.cable(host_name(i) + "-" + host_name(next), i, {i, next},
                  {"to-" + host_name(next), "to-" + host_name(i)});
  }
  return builder.finish();
}

Topology make_star(const std::string& name, size_t leaves) {
  Builder builder(name, leaves + 1);
  for (size_t leaf = 1; leaf <= leaves; ++leaf) {
    builder.cable("h1-" + host_name(leaf), leaf - 1, {0, leaf}, {"to-" + host_name(leaf), "to-h1"});
  }
  return builder.finish();
}

/// A tree drawn at random, and half as many more cables as there are hosts.
Topology make_mesh(const std::string& name, size_t hosts, uint64_t seed) {
  Builder builder(name, hosts);
  Random random(seed);
  std::set<std::pair<size_t, size_t>> cables;
  for (size_t host = 1; host < hosts; ++host) {
    cables.emplace(random.below(host), host);
  }
  const size_t most = std::min(hosts * (hosts - 1) / 2, hosts - 1 + hosts / 2);
  while (cables.size() < most) {
    const size_t one = random.below(hosts);
    const size_t other = random.below(hosts);
    if (one != other) {
      cables.emplace(std::min(one, other), std::max(one, other));
    }
  }
  size_t net = 0;
  for (const auto& [one, other] : cables) {
    builder.cable(host_name(one) + "-" + host_name(other), net++, {one, other},
                  {"to-" + host_name(other), "to-" + host_name(one)});
  }
  return builder.finish();
}

/// A ring of boxes with two ports of two devices each, as DGX Spark has them: both devices of a
/// host's second port lead to the next host's first one, and none has an IP address of its own.
/// The devices of a port are functions in two PCI domains.
Topology make_gb10(const std::string& name, size_t hosts) {
  Builder builder(name, hosts);
  const std::array<std::array<std::string, 2>, 2> halves{
      {{"enp1s0f1np1", "enp1s0f0np0"}, {"enP2p1s0f1np1", "enP2p1s0f0np0"}}};
  for (size_t host = 0; host < hosts; ++host) {
    const size_t next = (host + 1) % hosts;
    const std::string cable = host_name(host) + "-" + host_name(next);
    for (size_t half = 0; half < halves.size(); ++half) {
      builder.cable(fmt::format("{}.{}", cable, half), cable, {host, next}, halves[half], {});
      const size_t domain = 2 * half;
      builder.as_functions(
          {fmt::format("{:04x}:01:00.1", domain), fmt::format("{:04x}:01:00.0", domain)},
          {"p1", "p0"});
    }
  }
  return builder.finish();
}

/// Four hosts with a subnet for each cable, NIC1 and NIC2, as people number them by hand.
Topology make_plan(const std::string& name, bool closed) {
  constexpr size_t hosts = 4;
  Builder builder(name, hosts);
  const auto address = [](size_t net, size_t host) {
    return fmt::format("192.168.{}.{}", 100 + net, host + 1);
  };
  for (size_t cable = 0; cable + (closed ? 0 : 1) < hosts; ++cable) {
    // In the line, the first host's only NIC is its first one; in the ring that leads to the last.
    const size_t next = (cable + 1) % hosts;
    const size_t net = closed ? (cable + 1) % hosts : cable;
    const std::string link = host_name(cable) + "-" + host_name(next);
    builder.cable(link, link, {cable, next}, {closed || cable > 0 ? "nic2" : "nic1", "nic1"},
                  {address(net, cable), address(net, next)});
  }
  return builder.finish();
}

/// Two islands: each has a switch for its own traffic (sin), one more joins all hosts (sout).
/// The sout addresses of an island share a /24, those of all hosts a /22.
Topology make_islands(const std::string& name, size_t per_island) {
  Builder builder(name, 2 * per_island);
  const size_t out = builder.add_medium();
  for (size_t island = 0; island < 2; ++island) {
    const size_t in = builder.add_medium();
    for (size_t i = 0; i < per_island; ++i) {
      const size_t host = island * per_island + i;
      builder.to_switch(in, fmt::format("sin{}", island + 1), host, "sin",
                        rail_address(8 + island, host), 24);
      builder.to_switch(out, "sout", host, "sout", rail_address(1 + island, host), 22);
    }
  }
  return builder.finish();
}

std::optional<size_t> number(std::string_view text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

Error unknown(std::string_view name) {
  return fail(Errc::invalid_argument,
              fmt::format("there is no topology '{}'; use one of\n{}", name, topologies_help()));
}

Error out_of_range(std::string_view name, size_t least, size_t most) {
  return fail(Errc::invalid_argument,
              fmt::format("topology '{}': the number must be {} to {}", name, least, most));
}

Result<void> check_rails(size_t hosts, size_t rails) {
  if (hosts < 1 || hosts > hosts_max || rails < 1 || rails > rails_max) {
    return fail(Errc::invalid_argument,
                fmt::format("a lab of rails has 1 to {} hosts and 1 to {} rails, not {} and {}",
                            hosts_max, rails_max, hosts, rails));
  }
  return {};
}

/// All of them in one switch and one subnet, as where nobody planned for several rails.
Result<Topology> make_flat(size_t hosts, size_t rails) {
  if (auto fits = check_rails(hosts, rails); !fits) {
    return fits.error();
  }
  Builder builder(fmt::format("flat-{}x{}", hosts, rails), hosts);
  const size_t medium = builder.add_medium();
  for (size_t rail = 0; rail < rails; ++rail) {
    const std::string name = fmt::format("rail{}", rail);
    for (size_t host = 0; host < hosts; ++host) {
      builder.to_switch(medium, name, host, name, rail_address(rail, host), 16);
    }
  }
  return builder.finish();
}

}  // namespace

std::string Topology::management_address(size_t host) const {
  return fmt::format("198.19.0.{}", host + 1);
}

Result<size_t> Topology::host(std::string_view wanted) const {
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (hosts[i] == wanted) {
      return i;
    }
  }
  return fail(Errc::invalid_argument,
              fmt::format("this lab has no host '{}'; its hosts are {} to {}", wanted,
                          hosts.front(), hosts.back()));
}

Result<std::vector<LinkChoice>> Topology::find(std::string_view wanted, const Side& side) const {
  std::vector<size_t> matching;
  for (size_t i = 0; i < links.size(); ++i) {
    bool hit = links[i].name == wanted || links[i].group == wanted;
    for (const size_t port : links[i].ports) {
      hit = hit ||
            (port != no_port && hosts[ports[port].host] + "." + ports[port].interface == wanted);
    }
    if (hit) {
      matching.push_back(i);
    }
  }
  if (matching.empty()) {
    std::string names;
    for (const Link& link : links) {
      names += (names.empty() ? "" : ", ") + link.name;
    }
    return fail(Errc::invalid_argument,
                fmt::format("this lab has no link '{}'; its links are {}", wanted, names));
  }
  for (const std::string& end : {side.sender, side.receiver}) {
    if (auto known = host(end.empty() ? hosts.front() : end); !known) {
      return known.error();
    }
  }
  std::vector<LinkChoice> chosen;
  for (const size_t i : matching) {
    LinkChoice choice;
    choice.link = i;
    for (size_t direction = 0; direction < 2; ++direction) {
      // Direction 0 goes from end 0 to end 1.  The end at a switch has no name.
      const auto end_name = [&](size_t end) {
        const size_t port = links[i].ports[end];
        return port == no_port ? std::string() : hosts[ports[port].host];
      };
      choice.direction[direction] =
          (side.sender.empty() || end_name(direction) == side.sender) &&
          (side.receiver.empty() || end_name(1 - direction) == side.receiver);
    }
    if (choice.direction[0] || choice.direction[1]) {
      chosen.push_back(choice);
    }
  }
  if (chosen.empty()) {
    return fail(Errc::invalid_argument,
                fmt::format("link '{}' does not end at {}", wanted,
                            side.sender.empty() ? side.receiver : side.sender));
  }
  return chosen;
}

Result<void> Topology::swap(std::string_view one, std::string_view other) {
  std::array<size_t, 2> chosen{};
  for (size_t i = 0; i < chosen.size(); ++i) {
    const std::string_view wanted = i == 0 ? one : other;
    auto found = find(wanted, {});
    if (!found) {
      return found.error();
    }
    if (found->size() != 1 || !links[found->front().link].to_switch()) {
      return fail(Errc::invalid_argument,
                  fmt::format("the cable of '{}' cannot be swapped: it has to be one interface, as "
                              "h3.rail0, with a switch at the other end",
                              wanted));
    }
    chosen[i] = found->front().link;
  }
  std::swap(links[chosen[0]].medium, links[chosen[1]].medium);
  return {};
}

Result<Topology> make_rails(size_t hosts, size_t rails) {
  if (auto fits = check_rails(hosts, rails); !fits) {
    return fits.error();
  }
  Builder builder(hosts == 2 && rails == 2 ? "pair" : fmt::format("rails-{}x{}", hosts, rails),
                  hosts);
  for (size_t rail = 0; rail < rails; ++rail) {
    const std::string name = fmt::format("rail{}", rail);
    if (hosts == 2) {
      builder.cable(name, rail, {0, 1}, {name, name});
      continue;
    }
    const size_t medium = builder.add_medium();
    for (size_t host = 0; host < hosts; ++host) {
      builder.to_switch(medium, name, host, name, rail_address(rail, host), 24);
    }
  }
  return builder.finish();
}

Result<Topology> parse_topology(std::string_view name) {
  if (name == "pair") {
    return make_rails(2, 2);
  }
  const size_t dash = name.find('-');
  const std::string_view kind = name.substr(0, dash);
  const std::string_view rest =
      dash == std::string_view::npos ? std::string_view() : name.substr(dash + 1);
  if (kind == "rails" || kind == "flat") {
    const size_t cross = rest.find('x');
    const auto hosts = number(rest.substr(0, cross));
    const auto rails = number(rest.substr(std::min(cross, rest.size() - 1) + 1));
    if (!hosts || !rails) {
      return unknown(name);
    }
    return kind == "rails" ? make_rails(*hosts, *rails) : make_flat(*hosts, *rails);
  }
  if (kind == "mesh") {
    const size_t second = rest.find('-');
    const auto hosts = number(rest.substr(0, second));
    const auto seed =
        second == std::string_view::npos ? size_t{1} : number(rest.substr(second + 1));
    if (!hosts || !seed) {
      return unknown(name);
    }
    return *hosts < 2 || *hosts > hosts_max ? Result<Topology>(out_of_range(name, 2, hosts_max))
                                            : make_mesh(std::string(name), *hosts, *seed);
  }
  if (name == "plan-ring" || name == "plan-line") {
    return make_plan(std::string(name), name == "plan-ring");
  }
  const auto count = number(rest);
  if (!count && !(dash == std::string_view::npos && kind == "islands")) {
    return unknown(name);
  }
  struct Range {
    std::string_view kind;
    size_t least;
    size_t most;
  };
  constexpr Range ranges[] = {{"islands", 1, hosts_max / 2},
                              {"gb10", 3, hosts_max},
                              {"ring", 3, hosts_max},
                              {"line", 2, hosts_max},
                              {"star", 2, hosts_max - 1}};
  for (const Range& range : ranges) {
    if (kind == range.kind && count && (*count < range.least || *count > range.most)) {
      return out_of_range(name, range.least, range.most);
    }
  }
  if (kind == "islands") {
    return make_islands(std::string(name), count.value_or(2));
  }
  if (kind == "ring" || kind == "line") {
    return make_chain(std::string(name), *count, kind == "ring");
  }
  if (kind == "gb10") {
    return make_gb10(std::string(name), *count);
  }
  if (kind == "star") {
    return make_star(std::string(name), *count);
  }
  return unknown(name);
}

std::string topologies_help() {
  return "  pair        two hosts, two rails\n"
         "  rails-HxR   H hosts with R rails (two hosts: cables; more: a switch for each rail)\n"
         "  flat-HxR    the same hosts and rails in one switch and one subnet\n"
         "  islands[-N] two islands of N hosts (default 2): a switch in each, one for all\n"
         "  ring-N      N hosts, a cable between neighbours, closed\n"
         "  line-N      the same, open\n"
         "  star-N      N hosts, each with a cable to h1 in the middle\n"
         "  mesh-N[-S]  N hosts, cables drawn at random by seed S (default 1)\n"
         "  gb10-N      N boxes in a ring, two devices for each cable, no IP addresses there\n"
         "  plan-ring, plan-line  four hosts, NIC1 and NIC2, subnets 192.168.100 to 103";
}

}  // namespace nccl_ha::tools::lab
