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
  const std::string said = lines_of(judge(pairs, hosts));
  EXPECT_NE(said.find("c is reached by nobody on rail0 and rail1"), std::string::npos) << said;
  pairs[5].error.clear();  // b and c on rail1
  EXPECT_EQ(lines_of(judge(pairs, hosts)).find("swapped"), std::string::npos) << "one rail: no";
  for (PairResult& pair : pairs) {
    pair.error = "no route";
  }
  EXPECT_EQ(lines_of(judge(pairs, hosts)).find("swapped"), std::string::npos)
      << "nobody reaches anybody: something else is wrong";
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
        one.addresses = {address_of(host, rail)};
        one.mac = mac_of(host, rail);
        sheet.rails.push_back(one);
      }
      sheets.push_back(sheet);
      seen.emplace_back();
      for (size_t other = 0; other < hosts; ++other) {
        for (size_t rail = 0; rail < 2 && other != host; ++rail) {
          const size_t answers = is_swapped(host) != is_swapped(other) ? 1 - rail : rail;
          seen.back().push_back({address_of(other, rail), mac_of(other, answers)});
        }
      }
    }
  }
  std::string said() const { return lines_of(judge_neighbours(sheets, seen, names)); }
};

TEST(CheckNeighbours, OfThreeHostsTheOneWithSwappedCablesIsNamed) {
  EXPECT_EQ(Cluster(3, {}).said(), "");
  EXPECT_EQ(Cluster(3, {2}).said(),
            "the cables of c are swapped: what is sent to 10.0.0.2 (rail0 of c) arrives at rail1, "
            "what is sent to 10.0.1.2 (rail1 of c) arrives at rail0\n");
  EXPECT_EQ(Cluster(5, {0, 3}).said().find("the cables of b"), std::string::npos);
  EXPECT_NE(Cluster(5, {0, 3}).said().find("the cables of d are swapped"), std::string::npos);
  EXPECT_NE(Cluster(5, {0, 3}).said().find("the cables of a are swapped"), std::string::npos);
}

TEST(CheckNeighbours, OfTwoHostsEitherMayBeWrong) {
  const std::string said = Cluster(2, {1}).said();
  EXPECT_TRUE(said.starts_with("the cables of a or b are swapped: what is sent to ")) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << "one finding: " << said;
}

TEST(CheckNeighbours, WhatTheSwappedHostAloneSawIsEnough) {
  Cluster cluster(3, {2});
  cluster.seen[0].clear();
  cluster.seen[1].clear();
  EXPECT_TRUE(cluster.said().starts_with("the cables of c are swapped: what is sent to 10.0.0.0"))
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
  cluster.seen[0] = {{"10.0.0.2", "02:00:00:00:99:99"}, {"192.168.0.1", mac_of(2, 1)}};
  EXPECT_EQ(cluster.said(), "") << "a router's, or an address of nobody's";
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
  EXPECT_EQ(all[1].address, "198.18.0.5");
  EXPECT_TRUE(neighbours_from_json(nlohmann::json::parse(R"([["a"], 3, ["a", 4], {}])")).empty());
  EXPECT_TRUE(read_neighbours(folder.path() + "/none").empty());
}

}  // namespace
}  // namespace nccl_ha::tools
