#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "relay/routes.h"
#include "relay/shape.h"
#include "relay/topology_file.h"
#include "runtime/base/random.h"

namespace nccl_ha::relay {
namespace {

/// Hosts named by a letter; cables as pairs of them, as in "ab bc".  Each letter of `no_relay` does
/// not relay.
Topology cabled(const std::string& cables, const std::string& no_relay = "") {
  std::set<char> letters;
  std::string text;
  for (const char c : cables) {
    letters.insert(c);
  }
  letters.erase(' ');
  for (const char c : letters) {
    text += std::string("node ") + c + " 10.0.0." + std::to_string(c) +
            (no_relay.find(c) == std::string::npos ? "\n" : " no-relay\n");
  }
  for (size_t i = 0; i + 1 < cables.size(); i += 3) {
    text += std::string("cable ") + cables[i] + " " + cables[i + 1] + " 1000\n";
  }
  auto topology = parse_topology_file(text, "cabled");
  EXPECT_TRUE(topology) << topology.error().message();
  return std::move(topology).value();
}

NodeId host(char letter) { return node_id_of_name(std::string(1, letter)); }

std::string letters(const Topology& topology, const Route& route) {
  std::string out;
  for (const NodeId node : route.nodes) {
    out += topology.nodes()[*topology.find(node)].name;
  }
  return out;
}

/// The routes of an entry, sorted where their order is that of ids.
std::vector<std::string> routes_of(const Topology& topology, char from, char to,
                                   const RouteOptions& options = {}) {
  const RouteTable table = RouteTable::make(topology, host(from), options);
  const RouteEntry* entry = table.find(host(to));
  std::vector<std::string> out;
  for (const Route& route : entry->routes) {
    out.push_back(letters(topology, route));
  }
  std::stable_sort(out.begin(), out.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  });
  return out;
}

using Names = std::vector<std::string>;

TEST(Routes, ACableIsTakenFirstAndTheOtherWayRoundIsKept) {
  const Topology ring = cabled("ab bc cd da");
  EXPECT_EQ(routes_of(ring, 'a', 'b'), (Names{"ab", "adcb"}));
  const RouteTable table = RouteTable::make(ring, host('a'), {});
  EXPECT_TRUE(table.find(host('b'))->direct());
  EXPECT_EQ(table.find(host('b'))->sharing, 1U) << "a cable shares with nobody";
}

TEST(Routes, OppositeCornersOfARingHaveTwoEqualWays) {
  const Topology ring = cabled("ab bc cd da");
  EXPECT_EQ(routes_of(ring, 'a', 'c'), (Names{"abc", "adc"}));
  RouteOptions options;
  const RouteTable table = RouteTable::make(ring, host('a'), options);
  const RouteEntry* entry = table.find(host('c'));
  EXPECT_EQ(entry->sharing, 2U);
  EXPECT_EQ(shares(*entry), (std::vector<uint32_t>{512, 512}));
  options.split = false;
  EXPECT_EQ(RouteTable::make(ring, host('a'), options).find(host('c'))->sharing, 1U);
}

TEST(Routes, TheLongerWayRoundSharesWhereADetourIsAllowed) {
  const Topology ring = cabled("ab bc cd de ea");
  EXPECT_EQ(routes_of(ring, 'a', 'c'), (Names{"abc", "aedc"}));
  RouteOptions options;
  EXPECT_EQ(RouteTable::make(ring, host('a'), options).find(host('c'))->sharing, 1U);
  options.detour_max = 1;
  const RouteTable table = RouteTable::make(ring, host('a'), options);
  const RouteEntry* entry = table.find(host('c'));
  ASSERT_EQ(entry->sharing, 2U);
  EXPECT_EQ(shares(*entry), (std::vector<uint32_t>{614, 410}))
      << "3 : 2, by the hops that each takes";
}

TEST(Routes, TheHopLimitHoldsForAllOfThem) {
  const Topology line = cabled("ab bc cd de ef");
  RouteOptions options;
  options.relays_max = 3;
  EXPECT_EQ(routes_of(line, 'a', 'e', options), Names{"abcde"});
  EXPECT_TRUE(routes_of(line, 'a', 'f', options).empty());
  const RouteTable table = RouteTable::make(line, host('a'), options);
  EXPECT_EQ(table.find(host('f'))->distance, 5U) << "it is known how far it would be";
  const Topology ring = cabled("ab bc cd de ef fa");
  options.relays_max = 1;
  EXPECT_EQ(routes_of(ring, 'a', 'c', options), Names{"abc"}) << "the way apart is too long";
}

TEST(Routes, NoRelayingLeavesCablesOnly) {
  const Topology line = cabled("ab bc");
  RouteOptions options;
  options.relay = false;
  EXPECT_EQ(routes_of(line, 'a', 'b', options), Names{"ab"});
  EXPECT_TRUE(routes_of(line, 'a', 'c', options).empty());
}

TEST(Routes, NobodyIsMadeARelayWhoIsNone) {
  const Topology ring = cabled("ab bc cd da", "b");
  EXPECT_EQ(routes_of(ring, 'a', 'c'), Names{"adc"});
  EXPECT_EQ(routes_of(ring, 'a', 'b'), (Names{"ab", "adcb"})) << "to it, though";
}

TEST(Routes, WhereNoCableLeadsThereIsNoRoute) {
  const Topology two = cabled("ab cd");
  const RouteTable table = RouteTable::make(two, host('a'), {});
  ASSERT_NE(table.find(host('c')), nullptr);
  EXPECT_TRUE(table.find(host('c'))->routes.empty());
  EXPECT_EQ(table.find(host('c'))->distance, 0U);
  EXPECT_EQ(table.find(NodeId{1}), nullptr);
  EXPECT_TRUE(RouteTable::make(two, NodeId{1}, {}).entries().empty());
}

TEST(Routes, BandwidthDecidesWhatEachGets) {
  auto topology = parse_topology_file(
      "node a 10.0.0.1\nnode b 10.0.0.2\nnode c 10.0.0.3\nnode d 10.0.0.4\n"
      "cable a b 100\ncable a b 200\ncable b c 300\ncable a d 100\ncable d c 300\n",
      "speeds");
  ASSERT_TRUE(topology);
  const RouteTable table = RouteTable::make(*topology, host('a'), {});
  const RouteEntry* entry = table.find(host('c'));
  ASSERT_EQ(entry->sharing, 2U);
  const size_t through_b = letters(*topology, entry->routes[0]) == "abc" ? 0 : 1;
  EXPECT_EQ(entry->routes[through_b].speed_mbps, 300U) << "both cables together";
  EXPECT_EQ(shares(*entry)[through_b] / 4, 192U) << "three quarters";
}

TEST(Routes, ARotationMixesByShares) {
  RouteRotation rotation;
  const std::vector<uint32_t> parts{768, 256};
  std::string picked;
  for (int i = 0; i < 8; ++i) {
    picked += static_cast<char>('0' + rotation.next(parts));
  }
  EXPECT_EQ(picked, "00100010");
}

TEST(Routes, WhatComesFromOutsideIsChecked) {
  const std::vector<NodeId> good{NodeId{1}, NodeId{2}, NodeId{3}};
  EXPECT_TRUE(check_route(good, 1, NodeId{2}, 1));
  EXPECT_FALSE(check_route(good, 1, NodeId{2}, 0)) << "too many";
  EXPECT_FALSE(check_route(good, 0, NodeId{2}, 1)) << "another place";
  EXPECT_FALSE(check_route(good, 3, NodeId{3}, 1)) << "behind the end";
  EXPECT_FALSE(check_route(std::vector{NodeId{1}}, 0, NodeId{1}, 1)) << "no way at all";
  const std::vector<NodeId> twice{NodeId{1}, NodeId{2}, NodeId{1}};
  EXPECT_FALSE(check_route(twice, 1, NodeId{2}, 4));
  const std::vector<NodeId> nobody{NodeId{1}, NodeId{0}, NodeId{2}};
  EXPECT_FALSE(check_route(nobody, 0, NodeId{1}, 4));
}

TEST(Routes, OnRandomMeshesAreShortestAndApart) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    const size_t hosts = 4 + random.below(20);
    std::string cables;
    for (size_t i = 1; i < hosts; ++i) {
      cables += {static_cast<char>('a' + i), static_cast<char>('a' + random.below(i)), ' '};
    }
    for (size_t i = 0; i < hosts; ++i) {
      const size_t one = random.below(hosts);
      const size_t other = random.below(hosts);
      if (one != other) {
        cables += {static_cast<char>('a' + one), static_cast<char>('a' + other), ' '};
      }
    }
    const Topology topology = cabled(cables);
    RouteOptions options;
    options.relays_max = 8;
    const RouteTable table = RouteTable::make(topology, host('a'), options);
    for (const RouteEntry& entry : table.entries()) {
      std::set<std::vector<NodeId>> different;
      for (const Route& route : entry.routes) {
        EXPECT_TRUE(check_route(route.nodes, 0, host('a'), options.relays_max));
        EXPECT_TRUE(different.insert(route.nodes).second) << "twice the same";
        for (size_t i = 0; i + 1 < route.nodes.size(); ++i) {
          EXPECT_TRUE(topology.adjacent(*topology.find(route.nodes[i]),
                                        *topology.find(route.nodes[i + 1])));
        }
      }
      if (!entry.routes.empty() && entry.routes.back().hops() > entry.distance) {
        const Route& apart = entry.routes.back();
        for (size_t i = 1; i + 1 < apart.nodes.size(); ++i) {
          const auto& first = entry.routes.front().nodes;
          EXPECT_EQ(std::find(first.begin(), first.end(), apart.nodes[i]), first.end());
        }
      }
    }
  }
}

TEST(Shapes, AreNamed) {
  const auto shape = [](const std::string& cables) {
    const Topology topology = cabled(cables);
    return shape_of(topology, *topology.find(host('a')));
  };
  EXPECT_EQ(shape("ab"), Shape::full_mesh);
  EXPECT_EQ(shape("ab bc ca"), Shape::full_mesh);
  EXPECT_EQ(shape("ab bc"), Shape::line);
  EXPECT_EQ(shape("ab bc cd"), Shape::line);
  EXPECT_EQ(shape("ab bc cd da"), Shape::ring);
  EXPECT_EQ(shape("ab ab bc cd da"), Shape::ring) << "two cables between two hosts";
  EXPECT_EQ(shape("ab ac ad"), Shape::star);
  EXPECT_EQ(shape("ab ac ad bc bd cd"), Shape::full_mesh);
  EXPECT_EQ(shape("ab bc cd da ac"), Shape::partial);
  EXPECT_EQ(shape("ab bc cd da ef fg ge"), Shape::ring) << "others are not part of it";
}

TEST(Shapes, WhatIsExpectedAndMissingIsSaid) {
  const Topology line = cabled("ab bc cd");
  const auto wrong = findings(line, 0, Shape::ring);
  ASSERT_EQ(wrong.size(), 3U);
  EXPECT_EQ(wrong[0], "HA_NCCL_MESH_TOPOLOGY expects a ring, but 4 hosts make a line");
  EXPECT_TRUE(std::any_of(wrong.begin(), wrong.end(), [](const std::string& one) {
    return one == "a has 1 neighbour (b), in a ring it has two";
  })) << wrong[1];
  EXPECT_TRUE(findings(line, 0, Shape::line).empty());
  LinkState alone;
  alone.origin = host('a');
  alone.name = "a";
  EXPECT_EQ(findings(Topology::make({alone}), 0, Shape::ring),
            std::vector<std::string>{
                "HA_NCCL_MESH_TOPOLOGY expects a ring, but no other host was heard"});
  EXPECT_TRUE(findings(cabled("ab bc ca"), 0, Shape::ring).empty());
  const auto mesh = findings(cabled("ab bc"), 0, Shape::full_mesh);
  ASSERT_EQ(mesh.size(), 2U);
  EXPECT_TRUE(mesh[1] == "no cable works between a and c" ||
              mesh[1] == "no cable works between c and a");
  const auto doubled = findings(cabled("ab ab bc"), 0, Shape::ring);
  EXPECT_TRUE(std::any_of(doubled.begin(), doubled.end(), [](const std::string& one) {
    return one == "a has several cables, all to b: move one of them";
  }));
}

TEST(Shapes, TheSettingIsChecked) {
  EXPECT_EQ(*parse_shape("auto"), std::nullopt);
  EXPECT_EQ(*parse_shape("ring"), Shape::ring);
  const auto wrong = parse_shape("torus");
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().what.find("HA_NCCL_MESH_TOPOLOGY=torus"), std::string::npos);
}

TEST(TopologyFiles, SayWhatIsWrongAndWhere) {
  const auto error = [](const std::string& text) {
    const auto topology = parse_topology_file(text, "file");
    return topology ? std::string("none") : topology.error().what;
  };
  EXPECT_EQ(error("node a 10.0.0.1\n"), "none");
  EXPECT_EQ(error(""), "file: no node in it");
  EXPECT_EQ(error("# c\nhost a\n"), "file:2: 'host' is neither node nor cable");
  EXPECT_EQ(error("node a\n"), "file:1: write: node NAME ADDRESS[/PREFIX]... [no-relay]");
  EXPECT_EQ(error("node a 10.0.0.1/33"), "file:1: '10.0.0.1/33' is no address");
  EXPECT_EQ(error("node a 1.1.1.1\nnode a 1.1.1.2"), "file:2: a is there twice");
  EXPECT_EQ(error("node a 1.1.1.1\ncable a b"), "file:2: no node 'b' above this line");
  EXPECT_EQ(error("node a 1.1.1.1\ncable a a"), "file:2: a cable from a host to itself");
  EXPECT_EQ(error("node a 1.1.1.1\nnode b 1.1.1.2\ncable a b fast"),
            "file:3: 'fast' is no number of Mbit/s");
  std::string many = "node a 1.1.1.1\nnode b 1.1.1.2\n";
  for (size_t i = 0; i <= links_max; ++i) {
    many += "cable a b\n";
  }
  EXPECT_EQ(error(many), "file:51: more than 48 cables at one host");
}

TEST(TopologyFiles, TheSeedsPlanOfFourHosts) {
  const auto topology = parse_topology_file(
      "node A 192.168.100.1/24 192.168.101.1/24\nnode B 192.168.101.2/24 192.168.102.2/24\n"
      "node C 192.168.102.3/24 192.168.103.3/24\nnode D 192.168.103.4/24 192.168.100.4/24\n"
      "cable A B\ncable B C\ncable C D\ncable D A\n",
      "plan");
  ASSERT_TRUE(topology);
  EXPECT_EQ(shape_of(*topology, 0), Shape::ring);
  IpAddress address;
  address.bytes = {192, 168, 102, 3};
  const auto found = find_host(*topology, {address});
  ASSERT_TRUE(found);
  EXPECT_EQ(topology->nodes()[*found].name, "C");
  const auto& nodes = topology->nodes();
  const auto d = *topology->find(node_id_of_name("D"));
  EXPECT_EQ(address_towards(nodes[*found], nodes[d])->text(), "192.168.103.4");
}

/// A host whose node began anew under another name is known by the old one for a while.
TEST(TopologyFiles, OfSeveralHostsWithOneAddressItIsTheOneWithACable) {
  IpAddress address;
  address.bytes = {10, 0, 0, 2};
  const auto found = [&](const std::string& cables) -> std::string {
    const auto topology = parse_topology_file(
        "node a 10.0.0.1\nnode old 10.0.0.2\nnode new 10.0.0.2 10.0.1.2\n" + cables, "hosts");
    const auto host = find_host(*topology, {address});
    return host ? topology->nodes()[*host].name : "none";
  };
  EXPECT_EQ(found("cable a new\n"), "new");
  EXPECT_EQ(found("cable a old\n"), "old");
  EXPECT_EQ(found("cable a new\ncable a old\n"), "none") << "nobody knows which of them";
  EXPECT_EQ(found(""), "none");
  address.bytes = {10, 0, 1, 2};
  EXPECT_EQ(found(""), "new") << "no other one has it";
}

}  // namespace
}  // namespace nccl_ha::relay
