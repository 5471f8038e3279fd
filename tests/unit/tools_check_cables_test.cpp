// Cables that lead to the wrong rail, as pairs of hosts and their neighbours' addresses show them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tools/check/explain.h"
#include "tools/check/neighbours.h"
#include "tools/check/pairs.h"

namespace nccl_ha::tools {
namespace {

/// All of them, a line each.
std::string lines_of(const std::vector<Finding>& findings) {
  std::string all;
  for (const Finding& finding : findings) {
    all += finding.what + "\n";
  }
  return all;
}

TEST(CheckPairs, AHostThatAllItsRailsLoseMayHaveSwappedCables) {
  std::vector<PairResult> pairs;
  for (const auto& [from, to] : {std::pair(0U, 1U), std::pair(0U, 2U), std::pair(1U, 2U)}) {
    for (const int device : {0, 1}) {
      PairResult pair;
      pair.from = from;
      pair.to = to;
      pair.device = device;
      pair.device_name = device == 0 ? "rail0" : "rail1";
      pair.gigabytes_per_s = 1;
      pair.error = to == 2 ? "no route" : "";
      pairs.push_back(pair);
    }
  }
  const std::vector<std::string> hosts{"a", "b", "c"};
  auto found = judge(pairs, hosts);
  EXPECT_EQ(lines_of(found), "no host reaches c on rail0 or rail1: no route\n");
  EXPECT_NE(found.at(0).remedy.find("the cause is probably on c"), std::string::npos);
  EXPECT_NE(found.at(0).remedy.find("swapped"), std::string::npos);
  pairs[5].error.clear();  // b and c on rail1
  found = judge(pairs, hosts);
  EXPECT_EQ(lines_of(found), "c with a and b on rail0 and rail1: no route\n");
  EXPECT_EQ(found.at(0).remedy.find("swapped"), std::string::npos) << "one cable works";
  for (PairResult& pair : pairs) {
    pair.error = "no route";
  }
  found = judge(pairs, hosts);
  EXPECT_EQ(lines_of(found), "rail0 and rail1: all pairs of hosts: no route\n");
  EXPECT_EQ(found.at(0).remedy.find("swapped"), std::string::npos)
      << "nobody reaches anybody: something else is wrong";
}

/// Every pair of so many hosts on two rails, all of them good.
std::vector<PairResult> every_pair(uint32_t hosts) {
  std::vector<PairResult> pairs;
  for (uint32_t from = 0; from < hosts; ++from) {
    for (uint32_t to = from + 1; to < hosts; ++to) {
      for (const int device : {0, 1}) {
        PairResult pair;
        pair.from = from;
        pair.to = to;
        pair.device = device;
        pair.device_name = fmt::format("rail{}", device);
        pair.round_trip_us = 100;
        pair.gigabytes_per_s = 0.4;
        pair.speed_mbps = 10000;
        pair.segments = 10000;
        pairs.push_back(pair);
      }
    }
  }
  return pairs;
}

/// As after another try of each alone, in which its hosts moved so much to themselves.
void try_alone(std::vector<PairResult>& pairs, double own_gigabytes_per_s) {
  for (PairResult& pair : pairs) {
    pair.alone = true;
    pair.own_gigabytes_per_s = own_gigabytes_per_s;
  }
}

/// Those of a host, on all rails or on one.
template <class F>
void on_host(std::vector<PairResult>& pairs, uint32_t host, int device, F&& change) {
  for (PairResult& pair : pairs) {
    if ((pair.from == host || pair.to == host) && (device < 0 || pair.device == device)) {
      change(pair);
    }
  }
}

const std::vector<std::string> eight{"a", "b", "c", "d", "e", "f", "g", "h"};

TEST(CheckPairs, OneCauseIsOneFindingAndAccusesNoCable) {
  struct Row {
    const char* error;
    const char* remedy;
  };
  constexpr Row rows[] = {
      {"no path came up: check that UDP is not filtered", "let UDP through"},
      {"this host uses IPv4 only (10.0.0.1) and the peer IPv6 only (fd00::2): give both an address "
       "of one family, or set NCCL_SOCKET_FAMILY",
       "NCCL_SOCKET_FAMILY"},
      {"eth0 of this host has no link: check cables", "has no link"},
  };
  for (const uint32_t hosts : {3U, 5U, 8U}) {
    for (const Row& row : rows) {
      auto pairs = every_pair(hosts);
      on_host(pairs, 1, -1, [&](PairResult& pair) { pair.error = row.error; });
      const auto found = judge(pairs, eight);
      ASSERT_EQ(found.size(), 1U) << lines_of(found);
      EXPECT_EQ(found[0].what, fmt::format("no host reaches b on rail0 or rail1: {}", row.error));
      EXPECT_NE(found[0].remedy.find(row.remedy), std::string::npos) << found[0].remedy;
      EXPECT_EQ(found[0].remedy.find("swapped"), std::string::npos) << found[0].remedy;
    }
  }
}

TEST(CheckPairs, TwoCausesAreTwoFindings) {
  auto pairs = every_pair(5);
  on_host(pairs, 1, 0, [](PairResult& pair) { pair.error = "check that UDP is not filtered"; });
  on_host(pairs, 3, 1, [](PairResult& pair) { pair.error = "rail1 of d has no link"; });
  EXPECT_EQ(lines_of(judge(pairs, eight)),
            "no host reaches d on rail1: rail1 of d has no link\n"
            "no host reaches b on rail0: check that UDP is not filtered\n");
}

TEST(CheckPairs, AnErrorThatNamesNoCauseHasThatOfItsHost) {
  auto pairs = every_pair(3);
  on_host(pairs, 2, -1, [](PairResult& pair) { pair.error = "check that UDP is not filtered"; });
  pairs.back().error = "connecting took too long";
  EXPECT_EQ(lines_of(judge(pairs, eight)),
            "no host reaches c on rail0 or rail1: check that UDP is not filtered\n");
  // The host that has too few descriptors says so, and the others that it is gone.
  pairs = every_pair(3);
  on_host(pairs, 2, -1, [](PairResult& pair) {
    pair.error = "the other side could not listen";
    pair.sides = {{pair.from, pair.error}, {2, "cannot listen: Too many open files"}};
    pair.error += "; cannot listen: Too many open files";
  });
  pairs.back().error = "the peer is gone";
  pairs.back().sides.clear();
  EXPECT_EQ(lines_of(judge(pairs, eight)),
            "c: 4 pairs with it fail: cannot listen: Too many open files\n");
}

TEST(CheckPairs, ASlowRailIsFoundWithTwoHostsToo) {
  for (const uint32_t hosts : {2U, 3U, 5U, 8U}) {
    auto pairs = every_pair(hosts);
    EXPECT_TRUE(judge(pairs, eight).empty());
    EXPECT_TRUE(to_try_again(pairs).empty());
    for (PairResult& pair : pairs) {
      pair.gigabytes_per_s = pair.device == 1 ? 0.001 : 0.4;
    }
    EXPECT_EQ(to_try_again(pairs).size(), std::min(hosts * (hosts - 1) / 2, 16U));
    EXPECT_TRUE(judge(pairs, eight).empty()) << "a busy host may be to blame";
    for (const size_t again : to_try_again(pairs)) {
      pairs[again].alone = true;
      pairs[again].own_gigabytes_per_s = 4;
    }
    EXPECT_EQ(lines_of(judge(pairs, eight)),
              hosts == 2 ? "a and b on rail1: 0.001 GB/s, rail0 carries 0.400\n"
                         : "rail1: all pairs of hosts: 0.001 GB/s, rail0 carries 0.400\n")
        << "those that are too many to be tried again are like the others";
    EXPECT_TRUE(to_try_again(pairs).empty());
  }
  auto pairs = every_pair(2);
  pairs.pop_back();
  pairs[0].gigabytes_per_s = 0.001;
  EXPECT_EQ(to_try_again(pairs).size(), 1U);
  try_alone(pairs, 4);
  EXPECT_EQ(lines_of(judge(pairs, eight)),
            "a and b on rail0: 0.001 GB/s, the link has 10000 Mbit/s\n");
  pairs[0].own_gigabytes_per_s = 0.05;
  EXPECT_TRUE(judge(pairs, eight).empty()) << "the hosts themselves have no time";
  pairs[0].own_gigabytes_per_s = 0;
  EXPECT_TRUE(judge(pairs, eight).empty()) << "nothing to compare it with";
  pairs = every_pair(2);
  pairs[1].gigabytes_per_s = 0.02;
  pairs[1].speed_mbps = 500;
  try_alone(pairs, 4);
  EXPECT_TRUE(judge(pairs, eight).empty()) << "a slower link carries less";
}

TEST(CheckPairs, ABusyHostIsNoSlowRail) {
  struct Row {
    double rate;
    double own;  ///< what its hosts moved to themselves in that moment
    bool found;
  };
  constexpr Row rows[] = {{0.644, 0.9, false}, {0.644, 2.5, false}, {0.644, 0, false},
                          {0.644, 3.9, true},  {0.02, 0.07, false}, {0.02, 0.3, true}};
  for (const uint32_t hosts : {2U, 3U, 4U, 5U, 8U}) {
    for (const Row& row : rows) {
      auto pairs = every_pair(hosts);
      for (PairResult& pair : pairs) {
        pair.gigabytes_per_s = 6;
        pair.speed_mbps = 0;
      }
      pairs[1].gigabytes_per_s = row.rate;
      EXPECT_EQ(to_try_again(pairs), std::vector<size_t>{1});
      EXPECT_TRUE(judge(pairs, eight).empty()) << "other pairs talked meanwhile";
      pairs[1].alone = true;
      pairs[1].own_gigabytes_per_s = row.own;
      const auto found = judge(pairs, eight);
      ASSERT_EQ(found.size(), 1U) << lines_of(found);
      EXPECT_EQ(found[0].level, row.found ? Level::warning : Level::hint) << found[0].what;
      EXPECT_TRUE(
          found[0].what.starts_with(fmt::format("a and b on rail1: {:.3f} GB/s, ", row.rate)))
          << found[0].what;
      EXPECT_EQ(to_try_again(pairs).size(), row.found ? 0U : 1U);
    }
  }
}

TEST(CheckPairs, AHostAtFaultInMostPairsIsTheSlowOne) {
  for (const uint32_t hosts : {3U, 4U, 5U, 8U}) {
    auto pairs = every_pair(hosts);
    on_host(pairs, 1, 0, [](PairResult& pair) { pair.gigabytes_per_s = 0.04; });
    std::erase_if(pairs, [](const PairResult& pair) { return pair.device == 1; });
    EXPECT_EQ(to_try_again(pairs).size(), hosts - 1);
    try_alone(pairs, 4);
    EXPECT_EQ(lines_of(judge(pairs, eight)),
              "b, rail0: all pairs: 0.040 GB/s, others carry 0.400\n");
  }
  // Half of the hosts have links of a tenth of the speed.
  auto pairs = every_pair(4);
  for (PairResult& pair : pairs) {
    if (pair.to >= 2) {
      pair.speed_mbps = 1000;
      pair.gigabytes_per_s = 0.04;
    }
  }
  EXPECT_TRUE(to_try_again(pairs).empty());
  try_alone(pairs, 4);
  EXPECT_TRUE(judge(pairs, eight).empty()) << lines_of(judge(pairs, eight));
}

TEST(CheckPairs, WhatFailsBecauseItIsLateIsTriedAgain) {
  const char* late = "connecting to 10.0.0.3 took longer than 3000 ms";
  auto pairs = every_pair(5);
  on_host(pairs, 1, -1, [](PairResult& pair) { pair.error = "check that UDP is not filtered"; });
  EXPECT_TRUE(to_try_again(pairs).empty()) << "the reason is known";
  pairs.back().error = late;
  EXPECT_EQ(to_try_again(pairs), std::vector<size_t>{pairs.size() - 1});
  // A host that says nothing: whom it does not concern comes first.
  pairs = every_pair(5);
  on_host(pairs, 1, -1, [&](PairResult& pair) { pair.error = late; });
  pairs.back().error = late;
  auto again = to_try_again(pairs);
  ASSERT_EQ(again.size(), 4U);
  EXPECT_EQ(again[0], pairs.size() - 1);
  for (const size_t i : again) {
    pairs[i].alone = true;
    pairs[i].own_gigabytes_per_s = 4;
  }
  EXPECT_TRUE(to_try_again(pairs).empty()) << "what failed again was no accident";
  pairs.back().error.clear();
  EXPECT_EQ(to_try_again(pairs).size(), 4U) << "some of it was";
  // The host itself is too late for anything.
  pairs = every_pair(2);
  pairs[0].error = late;
  try_alone(pairs, 0);
  EXPECT_EQ(to_try_again(pairs).size(), 1U);
}

TEST(CheckPairs, PacketsThatGetLost) {
  auto pairs = every_pair(3);
  on_host(pairs, 1, 0, [](PairResult& pair) {
    pair.segments_lost = 2000;
    pair.gigabytes_per_s = 0.001;
  });
  EXPECT_EQ(to_try_again(pairs).size(), 2U);
  EXPECT_TRUE(judge(pairs, eight).empty()) << "a busy host may be to blame";
  try_alone(pairs, 4);
  EXPECT_TRUE(to_try_again(pairs).empty()) << "none loses so many";
  const auto found = judge(pairs, eight);
  ASSERT_EQ(found.size(), 1U) << lines_of(found) << "that it is slow comes of that";
  EXPECT_EQ(found[0].what,
            "b, rail0: all pairs: packets get lost: 4000 of 20000 datagrams were lost");
  EXPECT_NE(found[0].remedy.find("ethtool -S"), std::string::npos);
  on_host(pairs, 1, 0, [](PairResult& pair) {
    pair.segments_lost = 100;
    pair.gigabytes_per_s = 0.4;
  });
  EXPECT_EQ(to_try_again(pairs).size(), 2U);
  on_host(pairs, 1, 0, [](PairResult& pair) { pair.segments_dropped = 64; });
  EXPECT_TRUE(judge(pairs, eight).empty()) << "a socket had no room: a host is busy";
  EXPECT_TRUE(to_try_again(pairs).empty());
  pairs = every_pair(2);
  pairs[1].segments_lost = 3000;
  pairs[1].error = "large messages: a transfer took too long";
  EXPECT_EQ(lines_of(judge(pairs, eight)),
            "a and b on rail1: large messages: a transfer took too long; 3000 of 10000 datagrams "
            "were lost\n");
}

TEST(CheckExplain, WhatAHostSaysOfItselfComesFirst) {
  HostDevices each;
  each.names = {"mlx5_0", "rail1"};
  each.interfaces = {"rail0", "rail1"};
  const std::vector<HostDevices> devices(3, each);
  auto pairs = every_pair(3);
  on_host(pairs, 1, -1, [](PairResult& pair) { pair.error = "no route"; });
  Finding limit{Level::error, "20 files only", "do", {{1, ""}}};
  Finding later{Level::warning, "other networks", "do", {{1, "rail1"}}};
  explain(pairs, devices, {&limit, &later});
  EXPECT_EQ(limit.what, "20 files only; 4 pairs of hosts fail");
  EXPECT_EQ(later.level, Level::warning) << "nothing is left for it to explain";
  EXPECT_TRUE(judge(pairs, eight).empty());

  pairs = every_pair(3);
  on_host(pairs, 1, 0, [](PairResult& pair) { pair.error = "no route"; });
  pairs.back().error = "cut";  // b and c on rail1
  Finding route{Level::warning, "leaves by rail1", "do", {{1, "rail0"}}};
  Finding nothing{Level::warning, "one more", "do", {}};
  explain(pairs, devices, {&route, &nothing});
  EXPECT_EQ(route.level, Level::error) << "by the name of the interface, too";
  EXPECT_EQ(route.what, "leaves by rail1; 2 pairs of hosts fail");
  EXPECT_EQ(nothing.what, "one more");
  EXPECT_EQ(lines_of(judge(pairs, eight)), "b and c on rail1: cut\n") << "two faults at once";
  EXPECT_TRUE(std::any_of(pairs.begin(), pairs.end(), [](auto& one) { return !one.error.empty(); }))
      << "the table still shows what fails";

  pairs = every_pair(3);
  on_host(pairs, 1, 0, [](PairResult& pair) { pair.warnings = {"path 0 did not come up"}; });
  Finding fewer{Level::warning, "one interface only", "do", {{1, "rail0"}}};
  explain(pairs, devices, {&fewer});
  EXPECT_EQ(fewer.level, Level::warning) << "nothing fails";
  EXPECT_EQ(fewer.what, "one interface only");
  EXPECT_TRUE(judge(pairs, eight).empty());
}

TEST(CheckPairs, TheRemedyIsThatOfWhatWasSaid) {
  struct Row {
    const char* said;
    const char* advice;
    const char* not_advice;
  };
  constexpr Row rows[] = {
      {"no path came up: check that UDP is not filtered", "let UDP through", "check cable"},
      {"this host uses IPv4 only (10.0.0.1) and the peer IPv6 only (fd00::2): give both an address "
       "of one family, or set NCCL_SOCKET_FAMILY",
       "NCCL_SOCKET_FAMILY", "check cable"},
      {"cannot connect: this host has no free TCP port (net.ipv4.ip_local_port_range is 1 to 2)",
       "net.ipv4.ip_local_port_range", "cable"},
      {"no free TCP port in HA_NCCL_LISTEN_PORTS=5000", "HA_NCCL_LISTEN_PORTS", "cable"},
      {"eth0 of this host has no link: check cables and switch ports", "has no link", "UDP"},
      {"eth0 and eth1 of this host have no link: check cables", "has no link", "filter"},
      {"cannot open a socket: Too many open files", "limit of open files", "check cable"},
      {"no address of the peer can be reached: No route to host", "check cable", "UDP through"},
  };
  for (const Row& row : rows) {
    PairResult pair;
    pair.to = 1;
    pair.error = row.said;
    const auto found = judge({pair}, {"a", "b"});
    ASSERT_EQ(found.size(), 1U) << row.said;
    EXPECT_NE(found[0].remedy.find(row.advice), std::string::npos) << found[0].remedy;
    EXPECT_EQ(found[0].remedy.find(row.not_advice), std::string::npos) << found[0].remedy;
  }
}

std::string address_of(size_t host, size_t rail) { return fmt::format("10.0.{}.{}", rail, host); }
std::string mac_of(size_t host, size_t rail) {
  return fmt::format("02:00:00:00:{:02}:{:02}", rail, host);
}

/// Hosts with two rails each, and what each saw of the others; `swapped`: those whose cables are.
struct Cluster {
  std::vector<HostSheet> sheets;
  std::vector<std::vector<Neighbour>> seen;
  std::vector<std::string> names;

  Cluster(size_t hosts, const std::vector<size_t>& swapped) {
    const auto is_swapped = [&](size_t host) {
      return std::find(swapped.begin(), swapped.end(), host) != swapped.end();
    };
    for (size_t host = 0; host < hosts; ++host) {
      HostSheet sheet;
      sheet.name = std::string(1, static_cast<char>('a' + host));
      sheet.machine = sheet.name;
      names.push_back(sheet.name);
      for (size_t rail = 0; rail < 2; ++rail) {
        RailSheet one;
        one.name = fmt::format("rail{}", rail);
        one.interface = one.name;
        one.addresses = {address_of(host, rail)};
        one.networks = {fmt::format("10.0.{}.0/24", rail)};
        one.mac = mac_of(host, rail);
        sheet.rails.push_back(one);
      }
      sheets.push_back(sheet);
      seen.emplace_back();
      for (size_t other = 0; other < hosts; ++other) {
        for (size_t rail = 0; rail < 2 && other != host; ++rail) {
          const size_t answers = is_swapped(host) != is_swapped(other) ? 1 - rail : rail;
          seen.back().push_back(
              {address_of(other, rail), mac_of(other, answers), fmt::format("rail{}", rail)});
          if (answers != rail) {  // what the other one asks is heard on the other rail
            seen.back().push_back(
                {address_of(other, rail), mac_of(other, rail), fmt::format("rail{}", answers)});
          }
        }
      }
    }
  }
  std::string said() const { return lines_of(judge_neighbours(sheets, seen, names)); }
};

TEST(CheckNeighbours, OfThreeHostsTheOneWithSwappedCablesIsNamed) {
  EXPECT_EQ(Cluster(3, {}).said(), "");
  EXPECT_EQ(Cluster(3, {2}).said(),
            "the cables of c are swapped: traffic for 10.0.0.2 (rail0 of c) arrives at rail1, "
            "traffic for 10.0.1.2 (rail1 of c) arrives at rail0\n");
  EXPECT_EQ(Cluster(5, {0, 3}).said().find("the cables of b"), std::string::npos);
  EXPECT_NE(Cluster(5, {0, 3}).said().find("the cables of d are swapped"), std::string::npos);
  EXPECT_NE(Cluster(5, {0, 3}).said().find("the cables of a are swapped"), std::string::npos);
}

TEST(CheckNeighbours, OfTwoHostsEitherMayBeWrong) {
  const std::string said = Cluster(2, {1}).said();
  EXPECT_TRUE(said.starts_with("the cables of a or b are swapped: traffic for ")) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << "one finding: " << said;
}

TEST(CheckNeighbours, WhatTheSwappedHostAloneSawIsEnough) {
  Cluster cluster(3, {2});
  cluster.seen[0].clear();
  cluster.seen[1].clear();
  EXPECT_TRUE(cluster.said().starts_with("the cables of c are swapped: traffic for 10.0.0.0"))
      << cluster.said();
}

TEST(CheckNeighbours, InterfacesThatShareADeviceAreNoSwap) {
  Cluster cluster(3, {2});
  for (HostSheet& sheet : cluster.sheets) {
    sheet.rails[1].mac = sheet.rails[0].mac;
  }
  for (auto& seen : cluster.seen) {
    for (Neighbour& one : seen) {
      one.mac.replace(12, 2, "00");
    }
  }
  EXPECT_EQ(cluster.said(), "");
  cluster.seen[0] = {{"10.0.0.2", "02:00:00:00:99:99", "rail0"},
                     {"192.168.0.1", mac_of(2, 1), "rail0"}};
  EXPECT_EQ(cluster.said(), "") << "a router's, or an address of nobody's";
}

TEST(CheckNeighbours, WhatShowsNoCableAccusesNone) {
  // A route of a's leads to rail1 of c over rail0, where c answers for it.
  Cluster cluster(3, {});
  cluster.seen[0].back() = {address_of(2, 1), mac_of(2, 0), "rail0"};
  EXPECT_EQ(cluster.said(), "");
  // a has rail1 only, and asks there for what is on rail0.
  cluster.seen[0] = {{address_of(2, 0), mac_of(2, 1), "rail1"},
                     {address_of(1, 0), mac_of(1, 1), "rail1"}};
  cluster.sheets[0].rails.erase(cluster.sheets[0].rails.begin());
  EXPECT_EQ(cluster.said(), "");
  // Both rails in one switch: c answers on both, and rail1 is faster each time.
  cluster = Cluster(3, {});
  for (size_t from = 0; from < 2; ++from) {
    cluster.seen[from].clear();
    for (size_t rail = 0; rail < 2; ++rail) {
      cluster.seen[from].push_back(
          {address_of(2, rail), mac_of(2, 1), fmt::format("rail{}", rail)});
    }
  }
  EXPECT_EQ(cluster.said(), "");
  // Both rails of c in one network: either answers.
  cluster = Cluster(3, {2});
  for (HostSheet& sheet : cluster.sheets) {
    for (RailSheet& rail : sheet.rails) {
      rail.networks = {"10.0.0.0/16"};
    }
  }
  EXPECT_EQ(cluster.said(), "");
}

TEST(CheckNeighbours, ThoseThatDidNotAnswerAreLeftOut) {
  const tests::TemporaryFolder folder;
  const std::string file = folder.path() + "/arp";
  std::ofstream(file)
      << "IP address       HW type     Flags       HW address            Mask     Device\n"
         "198.18.0.3       0x1         0x2         02:00:00:00:00:03     *        rail0\n"
         "198.18.0.4       0x1         0x0         00:00:00:00:00:00     *        rail0\n"
         "198.18.0.5       0x1         0x6         02:00:00:00:00:05     *        rail0\n";
  const auto all = neighbours_from_json(to_json(read_neighbours(file)));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].address, "198.18.0.3");
  EXPECT_EQ(all[0].mac, "02:00:00:00:00:03");
  EXPECT_EQ(all[0].device, "rail0");
  EXPECT_EQ(all[1].address, "198.18.0.5");
  EXPECT_TRUE(neighbours_from_json(nlohmann::json::parse(R"([["a"], 3, ["a", 4], {}])")).empty());
  EXPECT_TRUE(read_neighbours(folder.path() + "/none").empty());
}

}  // namespace
}  // namespace nccl_ha::tools
