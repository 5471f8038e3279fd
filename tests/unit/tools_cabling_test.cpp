#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "tools/common/cabling.h"

namespace nccl_ha::tools {
namespace {

/// Boxes as GB10's are: two ports, each by two functions with 100 Gb/s; interface numbers are 1 to
/// 4, those of p0 first.
std::vector<PortFunction> box() {
  std::vector<PortFunction> all;
  for (const char* port : {"p0", "p1"}) {
    for (const char* half : {"enp1s0", "enP2p1s0"}) {
      PortFunction one;
      one.interface = std::string(half) + port;
      one.ifindex = static_cast<uint32_t>(all.size() + 1);
      one.mtu = 9000;
      one.speed_mbps = 100000;
      one.carrier = true;
      one.port = {"a1b2", port};
      all.push_back(one);
    }
  }
  return all;
}

struct Cable {
  uint64_t one;
  uint32_t interface;
  uint64_t other;
  uint32_t peer_interface;
  uint32_t speed_mbps = 100000;
};

relay::Topology topology_of(uint64_t hosts, const std::vector<Cable>& cables) {
  std::vector<relay::LinkState> states(hosts);
  for (uint64_t host = 0; host < hosts; ++host) {
    states[host].origin = relay::NodeId{host + 1};
    states[host].name = "h" + std::to_string(host + 1);
  }
  for (const Cable& cable : cables) {
    states[cable.one - 1].links.push_back(
        {relay::NodeId{cable.other}, cable.interface, cable.peer_interface, cable.speed_mbps});
    states[cable.other - 1].links.push_back(
        {relay::NodeId{cable.one}, cable.peer_interface, cable.interface, cable.speed_mbps});
  }
  return relay::Topology::make(states);
}

/// Both halves of p1 of each host to p0 of the next one's.
std::vector<Cable> ring(uint64_t hosts) {
  std::vector<Cable> cables;
  for (uint64_t host = 1; host <= hosts; ++host) {
    const uint64_t next = host % hosts + 1;
    cables.push_back({host, 3, next, 1});
    cables.push_back({host, 4, next, 2});
  }
  return cables;
}

std::string all_of(const std::vector<Miscabling>& found) {
  std::string text;
  for (const Miscabling& one : found) {
    text += one.what + "; do: " + one.remedy + "\n";
  }
  return text;
}

TEST(Cabling, ARingOfFourIsRight) {
  EXPECT_EQ(all_of(judge_cabling(topology_of(4, ring(4)), 0, box())), "");
}

TEST(Cabling, AHalfThatIsDownIsNamed) {
  std::vector<Cable> cables = ring(4);
  std::erase_if(cables, [](const Cable& one) { return one.one == 1 && one.interface == 4; });
  std::vector<PortFunction> functions = box();
  functions[3].carrier = false;
  EXPECT_EQ(all_of(judge_cabling(topology_of(4, cables), 0, functions)),
            "enP2p1s0p1, one of 2 ways to port p1, is down, though another one works: half of the "
            "port is idle; do: ip link set enP2p1s0p1 up, and look at its configuration; where it "
            "stays without a carrier, plug the cable in anew\n");
}

TEST(Cabling, AHalfThatHearsNobodyIsNamed) {
  std::vector<Cable> cables = ring(4);
  std::erase_if(cables, [](const Cable& one) { return one.one == 1 && one.interface == 4; });
  const std::string told = all_of(judge_cabling(topology_of(4, cables), 0, box()));
  EXPECT_NE(told.find("enP2p1s0p1, one of 2 ways to port p1, hears no neighbour"),
            std::string::npos)
      << told;
  EXPECT_NE(told.find("link-local"), std::string::npos) << told;
}

TEST(Cabling, APortWithoutACableIsNoMistake) {
  // The end of a line.
  std::vector<Cable> cables = ring(4);
  std::erase_if(cables, [](const Cable& one) { return one.one == 4; });
  std::vector<PortFunction> functions = box();
  functions[0].carrier = functions[1].carrier = false;
  EXPECT_EQ(all_of(judge_cabling(topology_of(4, cables), 0, functions)), "");
}

TEST(Cabling, ASlowHalfIsNamedWhicheverEndIsSlow) {
  std::vector<Cable> cables = ring(4);
  cables[1].speed_mbps = 25000;
  const std::string told = all_of(judge_cabling(topology_of(4, cables), 0, box()));
  EXPECT_NE(told.find("enP2p1s0p1, one of 2 ways to port p1, has 25000 Mbit/s, another one 100000"),
            std::string::npos)
      << told;
}

TEST(Cabling, ASmallMtuIsNamedWhereThereIsACable) {
  std::vector<PortFunction> functions = box();
  functions[2].mtu = 1500;
  const std::string told = all_of(judge_cabling(topology_of(4, ring(4)), 0, functions));
  EXPECT_NE(told.find("enp1s0p1 has an MTU of 1500"), std::string::npos) << told;
  EXPECT_NE(told.find("mtu 9000, on both hosts"), std::string::npos) << told;
}

TEST(Cabling, BothPortsToOneHostAreNamedWhereThereAreOthers) {
  // h1 and h2 have two cables, h2 and h3 none.
  std::vector<Cable> both{{1, 1, 2, 1}, {1, 2, 2, 2}, {1, 3, 2, 3}, {1, 4, 2, 4}};
  EXPECT_EQ(all_of(judge_cabling(topology_of(2, both), 0, box())), "") << "two boxes may";
  both.push_back({2, 5, 3, 1});
  const std::string told = all_of(judge_cabling(topology_of(3, both), 0, box()));
  EXPECT_NE(told.find("ports p0 and p1 both lead to h2, though there are 3 hosts"),
            std::string::npos)
      << told;
}

TEST(Cabling, PortsThatLeadToOneHostOverASwitchAreRight) {
  // Ports p0 of all hosts are on one switch, ports p1 on another one.
  for (const uint64_t hosts : {uint64_t{3}, uint64_t{4}}) {
    std::vector<Cable> cables;
    for (uint64_t one = 1; one <= hosts; ++one) {
      for (uint64_t other = one + 1; other <= hosts; ++other) {
        cables.push_back({one, 1, other, 1});
        cables.push_back({one, 3, other, 3});
      }
    }
    std::vector<PortFunction> functions = box();
    std::vector<PortFunction> one_each{functions[0], functions[2]};
    EXPECT_EQ(all_of(judge_cabling(topology_of(hosts, cables), 0, one_each)), "");
    // The first host has not heard the last one yet.
    std::erase_if(cables, [&](const Cable& one) { return one.one == 1 && one.other != 2; });
    EXPECT_EQ(all_of(judge_cabling(topology_of(hosts, cables), 0, one_each)), "");
  }
}

TEST(Cabling, FunctionsAreFoundInSysfsAlsoWithoutCarrier) {
  namespace fs = std::filesystem;
  const tests::TemporaryFolder folder;
  const fs::path classes = folder.path();
  fs::create_directories(classes / "bus/pci");
  const auto add = [&](const std::string& name, const std::string& port, bool pci) {
    const fs::path at = classes / "net" / name;
    fs::create_directories(at / "device");
    if (pci) {
      fs::create_symlink(classes / "bus/pci", at / "device/subsystem");
    }
    std::ofstream(at / "phys_switch_id") << "a1b2\n";
    std::ofstream(at / "phys_port_name") << port << "\n";
    std::ofstream(at / "ifindex") << "7\n";
    std::ofstream(at / "mtu") << "1500\n";
    std::ofstream(at / "speed") << "-1\n";
  };
  add("up", "p0", true);
  add("down", "p0", true);
  add("virtual", "pf0vf1", true);
  add("bridge", "p0", false);
  std::ofstream(classes / "net/up/carrier") << "1\n";
  const std::vector<PortFunction> found = list_port_functions(folder.path());
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].interface, "down");
  EXPECT_FALSE(found[0].carrier);
  EXPECT_EQ(found[1].interface, "up");
  EXPECT_TRUE(found[1].carrier);
  EXPECT_EQ(found[1].ifindex, 7U);
  EXPECT_EQ(found[1].mtu, 1500U);
  EXPECT_EQ(found[1].speed_mbps, 0);
  EXPECT_TRUE(list_port_functions(folder.path() + "/none").empty());
}

}  // namespace
}  // namespace nccl_ha::tools
