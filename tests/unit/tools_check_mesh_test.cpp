// What nccl-ha check says of hosts that are cabled without a switch: nothing where all is right,
// and of each mistake one finding.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "tools/check/mesh_findings.h"
#include "tools/check/mesh_paths.h"
#include "tools/check/mesh_plan.h"

namespace nccl_ha::tools {
namespace {

relay::NodeId node_of(size_t host) { return relay::NodeId{100 + host}; }

/// Hosts and cables, the sheets that they give, and what trying the cables shows.
struct Wired {
  struct Joint {
    size_t one, one_port, other, other_port;
    bool heard = true;
    bool one_hears = false;  ///< though the other one does not
  };
  std::vector<MeshSheet> sheets;
  std::vector<Joint> joints;
  std::vector<std::string> names;
  std::function<void(PairResult&, const std::string& cable)> on_try = [](auto&, auto&) {};

  explicit Wired(size_t hosts) {
    for (size_t host = 0; host < hosts; ++host) {
      MeshSheet sheet;
      sheet.self = node_of(host);
      sheet.expected = "auto";
      sheet.relays_max = 4;
      sheet.udp_port = 18740;
      sheets.push_back(sheet);
      names.push_back(fmt::format("h{}", host + 1));
    }
  }
  size_t add_port(size_t host, const std::string& name, const std::string& address,
                  const std::string& network) {
    MeshPort port;
    port.name = name;
    port.ifindex = static_cast<uint32_t>(sheets[host].ports.size() + 2);
    port.enabled = port.link = port.addressed = port.in_mesh = port.is_device = true;
    port.mtu = 9000;
    port.speed_mbps = 100000;
    if (!address.empty()) {
      port.addresses = {address + "/24"};
      port.networks = {network};
    }
    sheets[host].ports.push_back(port);
    return sheets[host].ports.size() - 1;
  }
  void cable(size_t one, size_t other) {
    const size_t net = joints.size();
    const auto end = [&](size_t host, size_t peer) {
      return add_port(host, "to-" + names[peer], fmt::format("10.1.{}.{}", net, host + 1),
                      fmt::format("10.1.{}.0/24", net));
    };
    const size_t own = end(one, other);
    joints.push_back({one, own, other, end(other, one)});
  }
  /// Both halves of a port, without addresses.
  void halves(size_t one, const std::string& port, size_t other, const std::string& other_port) {
    for (const char* half : {"enp1s0", "enP2p1s0"}) {
      const size_t own = add_port(one, half + port, "", "");
      const size_t theirs = add_port(other, half + other_port, "", "");
      sheets[one].ports[own].nic = sheets[other].ports[theirs].nic = "a1b2";
      sheets[one].ports[own].nic_port = port;
      sheets[other].ports[theirs].nic_port = other_port;
      joints.push_back({one, own, other, theirs});
    }
  }
  MeshPort& port(size_t host, const std::string& name) {
    return *std::find_if(sheets[host].ports.begin(), sheets[host].ports.end(),
                         [&](const MeshPort& one) { return one.name == name; });
  }
  /// The cable at that port of the host.
  Joint& joint(size_t host, const std::string& name) {
    return *std::find_if(joints.begin(), joints.end(), [&](const Joint& one) {
      return (one.one == host && sheets[host].ports[one.one_port].name == name) ||
             (one.other == host && sheets[host].ports[one.other_port].name == name);
    });
  }
  void unplug(size_t host, const std::string& name) {
    const Joint gone = joint(host, name);
    sheets[gone.one].ports[gone.one_port].link = false;
    sheets[gone.other].ports[gone.other_port].link = false;
    joint(host, name).heard = false;
  }

  void with_nodes() {
    for (MeshSheet& sheet : sheets) {
      sheet.origin = MeshSight::Origin::relay_node;
    }
  }

  MeshPlan plan() {
    std::vector<relay::LinkState> states(sheets.size());
    for (size_t host = 0; host < sheets.size(); ++host) {
      states[host].origin = sheets[host].self;
      states[host].name = names[host];
      states[host].relays = sheets[host].origin == MeshSight::Origin::relay_node;
    }
    for (const Joint& one : joints) {
      const uint32_t own = sheets[one.one].ports[one.one_port].ifindex;
      const uint32_t theirs = sheets[one.other].ports[one.other_port].ifindex;
      if (one.heard) {
        states[one.one].links.push_back({sheets[one.other].self, own, theirs, 100000});
        states[one.other].links.push_back({sheets[one.one].self, theirs, own, 100000});
      } else if (one.one_hears) {
        sheets[one.one].one_way.push_back({own, sheets[one.other].self, theirs});
      }
    }
    for (MeshSheet& sheet : sheets) {
      sheet.states = states;
    }
    return plan_mesh(sheets);
  }

  std::vector<Finding> findings() {
    const MeshPlan made = plan();
    EXPECT_TRUE(made.is_mesh);
    std::vector<PairResult> tried;
    for (const auto& round : made.rounds) {
      for (const size_t number : round) {
        PairResult pair;
        pair.from = made.cables[number].ends[0].rank;
        pair.to = made.cables[number].ends[1].rank;
        pair.device = static_cast<int>(number);
        pair.round_trip_us = 10;
        pair.gigabytes_per_s = 10;
        pair.alone = true;
        pair.own_gigabytes_per_s = 10;
        pair.segments = 10000;
        on_try(pair, cable_name(made.cables[number], sheets));
        tried.push_back(pair);
      }
    }
    return judge_mesh(made, sheets, tried, names);
  }
};

Wired chain_of(size_t hosts, bool closed) {
  Wired made(hosts);
  for (size_t host = 0; host + (closed ? 0 : 1) < hosts; ++host) {
    made.cable(host, (host + 1) % hosts);
  }
  return made;
}

Wired star_of(size_t leaves) {
  Wired made(leaves + 1);
  for (size_t leaf = 1; leaf <= leaves; ++leaf) {
    made.cable(0, leaf);
  }
  return made;
}

Wired partial_mesh() {
  Wired made(6);
  for (const auto& [one, other] : std::vector<std::pair<size_t, size_t>>{
           {0, 1}, {0, 2}, {1, 3}, {2, 3}, {3, 4}, {4, 5}, {1, 5}, {0, 4}}) {
    made.cable(one, other);
  }
  return made;
}

Wired boxes(size_t hosts, bool closed = true) {
  Wired made(hosts);
  for (size_t host = 0; host + (closed ? 0 : 1) < hosts; ++host) {
    made.halves(host, "p1", (host + 1) % hosts, "p0");
  }
  return made;
}

struct HealthyMesh {
  const char* name;
  Wired wired;
};
void PrintTo(const HealthyMesh& one, std::ostream* out) { *out << one.name; }

class HealthyMeshes : public ::testing::TestWithParam<HealthyMesh> {};

TEST_P(HealthyMeshes, HaveNoFinding) {
  for (const bool nodes : {false, true}) {
    Wired wired = GetParam().wired;
    if (nodes) {
      wired.with_nodes();
    }
    for (const Finding& finding : wired.findings()) {
      ADD_FAILURE() << finding.what;
    }
    const MeshPlan plan = wired.plan();
    EXPECT_EQ(plan.cables.size(), wired.joints.size());
    size_t tried = 0;
    for (const auto& round : plan.rounds) {
      std::set<uint32_t> busy;
      for (const size_t number : round) {
        ++tried;
        for (const CableEnd end : plan.cables[number].ends) {
          EXPECT_TRUE(busy.insert(end.rank).second) << "one cable at a time";
        }
      }
    }
    EXPECT_EQ(tried, plan.cables.size()) << "each cable is tried";
    const MeshSummary summary = summary_of(plan, wired.sheets);
    EXPECT_EQ(summary.hosts, wired.sheets.size());
    EXPECT_EQ(summary.relays.find("relay nodes") != std::string::npos, nodes);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, HealthyMeshes,
    ::testing::Values(
        HealthyMesh{"ring_3", chain_of(3, true)}, HealthyMesh{"ring_4", chain_of(4, true)},
        HealthyMesh{"ring_6", chain_of(6, true)}, HealthyMesh{"line_3", chain_of(3, false)},
        HealthyMesh{"line_4", chain_of(4, false)}, HealthyMesh{"line_6", chain_of(6, false)},
        HealthyMesh{"star_4", star_of(4)}, HealthyMesh{"star_6", star_of(6)},
        HealthyMesh{"partial_mesh", partial_mesh()}, HealthyMesh{"boxes_3", boxes(3)},
        HealthyMesh{"boxes_4", boxes(4)}, HealthyMesh{"boxes_in_a_line", boxes(4, false)}),
    [](const auto& one) { return std::string(one.param.name); });

struct Mistake {
  const char* name;
  Wired wired;
  std::function<void(Wired&)> make;
  Level level;
  std::vector<const char*> said;  ///< parts of the finding
  const char* remedy = "";        ///< a part of it
};
void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

class MeshMistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(MeshMistakes, HaveOneFindingThatNamesThem) {
  const Mistake& mistake = GetParam();
  Wired wired = mistake.wired;
  mistake.make(wired);
  const auto found = wired.findings();
  std::string all;
  for (const Finding& one : found) {
    all += one.what + "\n";
    EXPECT_FALSE(one.remedy.empty()) << one.what;
  }
  ASSERT_EQ(found.size(), 1U) << all;
  EXPECT_EQ(found[0].level, mistake.level) << all;
  for (const char* part : mistake.said) {
    EXPECT_NE(found[0].what.find(part), std::string::npos) << part << " is not in " << all;
  }
  EXPECT_NE(found[0].remedy.find(mistake.remedy), std::string::npos) << found[0].remedy;
}

void expect_ring(Wired& wired) {
  for (MeshSheet& sheet : wired.sheets) {
    sheet.expected = "ring";
  }
}

void lose_udp_to(Wired& wired, size_t host) {
  for (Wired::Joint& one : wired.joints) {
    if (one.one == host || one.other == host) {
      if (one.one == host) {
        std::swap(one.one, one.other);
        std::swap(one.one_port, one.other_port);
      }
      one.heard = false;
      one.one_hears = true;
    }
  }
}

const Mistake mistakes[] = {
    {"a_cable_missing_from_a_ring",
     chain_of(4, false),
     expect_ring,
     Level::warning,
     {"HA_NCCL_MESH_TOPOLOGY expects a ring, but 4 hosts make a line", "h1 has 1 neighbour (h2)",
      "h4 has 1 neighbour (h3)"},
     "plug in the cable"},
    {"a_cable_that_is_down",
     chain_of(4, true),
     [](Wired& w) { w.unplug(0, "to-h2"); },
     Level::error,
     {"the cable between h1 (to-h2) and h2 (to-h1) has no link"},
     "plug it in"},
    {"a_cable_that_is_down_where_a_ring_is_expected",
     chain_of(4, true),
     [](Wired& w) {
       expect_ring(w);
       w.unplug(0, "to-h2");
     },
     Level::error,
     {"the cable between h1 (to-h2) and h2 (to-h1) has no link"}},
    {"a_cable_of_a_line_that_is_down",
     chain_of(3, false),
     [](Wired& w) { w.unplug(1, "to-h3"); },
     Level::error,
     {"the cable between h2 (to-h3) and h3 (to-h2) has no link"}},
    {"all_cables_of_a_host_that_are_down",
     chain_of(4, true),
     [](Wired& w) {
       w.unplug(1, "to-h1");
       w.unplug(1, "to-h3");
     },
     Level::error,
     {"the cables of to-h1 and to-h3 of h2 to h1 (to-h2) and h3 (to-h2) have no link"}},
    {"a_cable_that_carries_nothing",
     chain_of(4, true),
     [](Wired& w) {
       w.joint(2, "to-h4").heard = false;
       w.on_try = [](PairResult& pair, const std::string& cable) {
         pair.error = cable == "to-h4/to-h3" ? "no address of the peer can be reached" : "";
       };
     },
     Level::error,
     {"the cable between h3 (to-h4) and h4 (to-h3) carries nothing", "no address of the peer"},
     "check cable"},
    {"an_interface_that_is_down",
     chain_of(4, true),
     [](Wired& w) {
       w.unplug(1, "to-h3");
       w.port(1, "to-h3").enabled = false;
     },
     Level::error,
     {"to-h3 of h2 is down", "h3 (to-h2)"},
     "ip link set to-h3 up"},
    {"a_half_that_is_down",
     boxes(4),
     [](Wired& w) {
       w.unplug(0, "enP2p1s0p0");
       w.port(0, "enP2p1s0p0").enabled = w.port(0, "enP2p1s0p0").addressed = false;
       w.port(0, "enP2p1s0p0").in_mesh = false;
     },
     Level::warning,
     {"enP2p1s0p0 (one of 2 ways to port p0) of h1 is down: half of the port is idle"},
     "ip link set enP2p1s0p0 up"},
    {"a_half_without_an_address",
     boxes(4),
     [](Wired& w) {
       w.joint(2, "enp1s0p1").heard = false;
       w.port(2, "enp1s0p1").addressed = w.port(2, "enp1s0p1").in_mesh = false;
     },
     Level::warning,
     {"enp1s0p1 (one of 2 ways to port p1) of h3 has no address"},
     "link-local"},
    {"a_half_that_came_up_slower",
     boxes(4),
     [](Wired& w) { w.port(1, "enp1s0p1").speed_mbps = 25000; },
     Level::warning,
     {"enp1s0p1 (one of 2 ways to port p1) of h2 has 25000 Mbit/s, not 100000"},
     "ethtool enp1s0p1"},
    {"a_half_that_is_slow",
     boxes(4),
     [](Wired& w) {
       w.on_try = [](PairResult& pair, const std::string& cable) {
         const bool it = pair.from == 1 && cable == "enp1s0p1/enp1s0p0";
         pair.gigabytes_per_s = it ? 0.5 : 10;
       };
     },
     Level::warning,
     {"the cable between h2 (enp1s0p1) and h3 (enp1s0p0): 0.500 GB/s", "10.000"}},
    {"both_ports_to_one_neighbour",
     Wired(3),
     [](Wired& w) {
       w.halves(0, "p0", 1, "p0");
       w.halves(0, "p1", 1, "p1");
     },
     Level::error,
     {"ports p0 and p1 of h1 both lead to h2, though there are 3 hosts"},
     "move one"},
    {"both_ports_to_one_neighbour_twice",
     Wired(4),
     [](Wired& w) {
       for (const size_t first : {0U, 2U}) {
         w.halves(first, "p0", first + 1, "p0");
         w.halves(first, "p1", first + 1, "p1");
       }
     },
     Level::error,
     {"ports p0 and p1 of h1 both lead to h2, ports p0 and p1 of h3 both lead to h4",
      "no cable joins h1, h2 with h3, h4"}},
    {"an_mtu_of_1500_on_one_end",
     chain_of(4, true),
     [](Wired& w) { w.port(1, "to-h3").mtu = 1500; },
     Level::warning,
     {"the MTU differs: 1500 bytes at to-h3 of h2, 9000 at h3 (to-h2)"},
     "same MTU"},
    {"an_mtu_of_1500_on_one_host",
     chain_of(4, true),
     [](Wired& w) { w.port(1, "to-h3").mtu = w.port(1, "to-h1").mtu = 1500; },
     Level::warning,
     {"1500 bytes at to-h1 and to-h3 of h2, 9000 at h1 (to-h2) and h3 (to-h2)"}},
    {"an_mtu_of_1500_on_both_ends_of_a_half",
     boxes(4),
     [](Wired& w) { w.port(1, "enp1s0p1").mtu = w.port(2, "enp1s0p0").mtu = 1500; },
     Level::warning,
     {"the MTU is small between h2 (enp1s0p1) and h3 (enp1s0p0) (1500 bytes)"},
     "mtu 9000"},
    {"a_cable_with_loss",
     chain_of(4, true),
     [](Wired& w) {
       w.on_try = [](PairResult& pair, const std::string& cable) {
         pair.segments_lost = cable == "to-h3/to-h2" ? 500 : 10;
         pair.gigabytes_per_s = cable == "to-h3/to-h2" ? 0.1 : 10;
       };
     },
     Level::warning,
     {"the cable between h2 (to-h3) and h3 (to-h2) loses packets: 500 of 10000 datagrams were "
      "lost"},
     "ethtool -S"},
    {"a_cable_that_the_settings_leave_out",
     chain_of(4, true),
     [](Wired& w) {
       w.sheets[1].ifname = "=to-h1";
       w.port(1, "to-h3").in_mesh = w.port(1, "to-h3").is_device = false;
       w.joint(1, "to-h3").heard = false;
     },
     Level::error,
     {"HA_NCCL_MESH_IFNAME==to-h1 leaves out to-h3 of h2", "to h3 (to-h2)"},
     "HA_NCCL_MESH_IFNAME"},
    {"a_half_that_the_settings_leave_out",
     boxes(4),
     [](Wired& w) {
       w.sheets[1].ifname = "^enp1s0p1";
       w.port(1, "enp1s0p1").in_mesh = w.port(1, "enp1s0p1").is_device = false;
       w.joint(1, "enp1s0p1").heard = false;
     },
     Level::warning,
     {"HA_NCCL_MESH_IFNAME=^enp1s0p1 leaves out enp1s0p1 (one of 2 ways to port p1) of h2"}},
    {"a_wrong_subnet_at_one_end",
     chain_of(4, true),
     [](Wired& w) {
       w.port(2, "to-h2").addresses = {"10.9.9.9/24"};
       w.port(2, "to-h2").networks = {"10.9.9.0/24"};
     },
     Level::error,
     {"the cable between h2 (to-h3) and h3 (to-h2) has ends in different networks",
      "h3 (to-h2) has 10.9.9.9/24"},
     "addresses of one network"},
    {"two_cables_that_are_swapped",
     chain_of(4, true),
     [](Wired& w) {
       std::swap(w.port(1, "to-h1").addresses, w.port(1, "to-h3").addresses);
       std::swap(w.port(1, "to-h1").networks, w.port(1, "to-h3").networks);
     },
     Level::error,
     {"the cables of to-h1 and to-h3 of h2 are swapped"},
     "exchange"},
    {"a_host_that_does_not_relay",
     chain_of(3, false),
     [](Wired& w) { w.sheets[1].takes_no_part = "HA_NCCL_MESH_RELAY=off"; },
     Level::error,
     {"HA_NCCL_MESH_RELAY=off on h2", "h1 and h3"},
     "remove the setting"},
    {"a_host_that_uses_no_relays_beside_a_node",
     chain_of(3, false),
     [](Wired& w) {
       w.with_nodes();
       w.sheets[0].takes_no_part = "HA_NCCL_MESH_ENABLE_RELAY=0";
     },
     Level::error,
     {"HA_NCCL_MESH_ENABLE_RELAY=0 on h1", "h1 and h3"}},
    {"udp_that_is_dropped_at_a_host",
     chain_of(4, true),
     [](Wired& w) { lose_udp_to(w, 1); },
     Level::error,
     {"h2 does not hear h1 (to-h2) and h3 (to-h2) on to-h1 and to-h3"},
     "let UDP through"},
    {"udp_that_is_dropped_both_ways_at_a_box",
     boxes(4),
     [](Wired& w) {
       lose_udp_to(w, 1);
       for (Wired::Joint& one : w.joints) {
         one.one_hears = false;
       }
     },
     Level::error,
     {"no cable joins h1, h3, h4 with h2: h2 hears no neighbour on ", "though there is a link"},
     "let UDP through"},
    {"udp_that_is_dropped_on_a_cable",
     chain_of(4, true),
     [](Wired& w) {
       w.joint(0, "to-h2").heard = false;
       w.on_try = [](PairResult& pair, const std::string& cable) {
         pair.error = cable == "to-h2/to-h1" ? "check that UDP is not filtered" : "";
       };
     },
     Level::error,
     {"the cable between h1 (to-h2) and h2 (to-h1) carries nothing"},
     "let UDP through"},
    {"too_many_hosts_between",
     chain_of(7, false),
     [](Wired&) {},
     Level::error,
     {"more hosts lie between than HA_NCCL_MESH_MAX_HOPS=4 allows: h1 and h7"},
     "add a cable"},
    {"a_host_without_a_cable",
     chain_of(4, false),
     [](Wired& w) {
       w.joints.pop_back();
       w.sheets[2].ports.pop_back();
       w.sheets[3].ports.clear();
     },
     Level::error,
     {"no cable joins h1, h2, h3 with h4"}},
    {"a_host_that_cannot_look",
     chain_of(4, true),
     [](Wired& w) {
       lose_udp_to(w, 3);
       for (Wired::Joint& one : w.joints) {
         one.one_hears = false;
       }
       w.sheets[3].error = "no key";
       w.sheets[3].ports.clear();
       std::erase_if(w.joints, [](const auto& one) { return !one.heard; });
     },
     Level::error,
     {"h4 cannot look for its neighbours: no key"}},
};

INSTANTIATE_TEST_SUITE_P(Mistakes, MeshMistakes, ::testing::ValuesIn(mistakes),
                         [](const auto& one) { return std::string(one.param.name); });

/// Each host hears all others on each of its interfaces.
Wired switched(size_t hosts, size_t rails) {
  Wired made(hosts);
  for (size_t rail = 0; rail < rails; ++rail) {
    for (size_t host = 0; host < hosts; ++host) {
      made.add_port(host, fmt::format("rail{}", rail), fmt::format("10.2.{}.{}", rail, host + 1),
                    fmt::format("10.2.{}.0/24", rail));
    }
    for (size_t one = 0; one < hosts; ++one) {
      for (size_t other = one + 1; other < hosts; ++other) {
        made.joints.push_back({one, rail, other, rail});
      }
    }
  }
  return made;
}

TEST(CheckMesh, HostsOnSwitchesAreNone) {
  for (const size_t hosts : {2U, 3U, 4U}) {
    EXPECT_FALSE(switched(hosts, 2).plan().is_mesh) << hosts;
  }
  Wired one_lost = switched(3, 1);
  std::erase_if(one_lost.joints, [](const auto& one) { return one.other == 2; });
  EXPECT_FALSE(one_lost.plan().is_mesh) << "three hosts have one network";
  EXPECT_FALSE(chain_of(2, false).plan().is_mesh) << "two hosts are compared device by device";
}

TEST(CheckMesh, CablesOfOneSubnetAreAMesh) {
  Wired ring = chain_of(4, true);
  for (MeshSheet& sheet : ring.sheets) {
    for (MeshPort& port : sheet.ports) {
      port.networks = {"10.0.0.0/8"};
    }
  }
  EXPECT_TRUE(ring.plan().is_mesh);
}

TEST(CheckMesh, PortsThatDifferAreSaidElsewhere) {
  Wired line = chain_of(3, false);
  lose_udp_to(line, 1);
  for (Wired::Joint& one : line.joints) {
    one.one_hears = false;
  }
  line.sheets[1].udp_port = 18741;
  EXPECT_TRUE(line.findings().empty()) << line.findings().front().what;
}

TEST(CheckMesh, TheSummarySaysWhatIsRelayed) {
  Wired ring = chain_of(4, true);
  const MeshSummary summary = summary_of(ring.plan(), ring.sheets);
  EXPECT_EQ(summary.shape, "ring");
  EXPECT_EQ(summary.cables, 4U);
  EXPECT_EQ(summary.pairs_relayed, 2U);
}

TEST(CheckMesh, SheetsSurviveTheWayThroughJson) {
  Wired ring = boxes(3);
  lose_udp_to(ring, 1);
  static_cast<void>(ring.plan());
  for (const MeshSheet& sheet : ring.sheets) {
    const auto back = mesh_sheet_from_json(to_json(sheet));
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(to_json(*back), to_json(sheet));
    EXPECT_EQ(back->states.size(), 3U);
  }
  EXPECT_FALSE(mesh_sheet_from_json(nlohmann::json::parse(R"({"error": 3})")));
}

}  // namespace
}  // namespace nccl_ha::tools
