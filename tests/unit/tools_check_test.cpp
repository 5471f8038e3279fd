// What nccl-ha check makes of what it sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/check/findings.h"
#include "tools/check/pairs.h"

namespace nccl_ha::tools {
namespace {

using fabric::verbs::GidEntry;
using fabric::verbs::LinkLayer;
using fabric::verbs::PortInfo;

fabric::NetInterface interface(const std::string& name, std::array<uint8_t, 4> address) {
  fabric::NetInterface made;
  made.name = name;
  made.up = true;
  IpAddress ip;
  ip.prefix_len = 24;
  std::copy(address.begin(), address.end(), ip.bytes.begin());
  made.addresses.push_back(ip);
  return made;
}

ChosenPort rdma_port(const std::string& device, const std::string& netdev) {
  ChosenPort made;
  made.info.device = device;
  made.info.netdev = netdev;
  made.info.active = true;
  made.info.mtu = 4096;
  made.info.speed_mbps = 400000;
  GidEntry gid;
  gid.index = 3;
  gid.roce_v2 = true;
  gid.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  made.gid = gid;
  made.gpu_memory = true;
  return made;
}

/// A host with which nothing is wrong.
HostFacts good_host() {
  HostFacts facts;
  facts.name = "a";
  facts.interfaces = {interface("eth0", {192, 168, 0, 1}), interface("ib0", {10, 0, 0, 1}),
                      interface("ib1", {10, 0, 1, 1})};
  facts.rdma.ports = {rdma_port("mlx5_0", "ib0"), rdma_port("mlx5_1", "ib1")};
  facts.kernel.granted_bytes = 1LL << 30;
  facts.kernel.segmentation = true;
  facts.cpus_usable = 64;
  facts.cpus = {0, 1, 2, 3};
  facts.cpus_online = 64;
  facts.cpu_nodes = {0, 1};
  facts.governors = {{"performance", 64}};
  facts.plugin.asked = "ha";
  facts.plugin.here = FoundPlugin{"/opt/ha/lib/libnccl-net-ha.so", ""};
  facts.plugin.of_nccl = facts.plugin.here;
  return facts;
}

/// The one finding that the change to a good host makes.
Finding only_finding(const HostFacts& facts) {
  const auto found = judge(facts);
  EXPECT_EQ(found.size(), 1U);
  for (const Finding& finding : found) {
    EXPECT_FALSE(finding.remedy.empty()) << finding.what;
  }
  return found.empty() ? Finding{} : found.front();
}

TEST(CheckFindings, AGoodHostHasNone) { EXPECT_TRUE(judge(good_host()).empty()); }

TEST(CheckFindings, PluginsThatNcclDoesNotFind) {
  HostFacts facts = good_host();
  facts.plugin.of_nccl.reset();
  facts.plugin.why_not = "no such file";
  Finding found = only_finding(facts);
  EXPECT_EQ(found.level, Level::error);
  EXPECT_NE(found.what.find("NCCL_NET_PLUGIN=ha NCCL finds nothing: no such file"),
            std::string::npos)
      << found.what;
  EXPECT_NE(found.remedy.find("put /opt/ha/lib first in LD_LIBRARY_PATH"), std::string::npos)
      << found.remedy;
  facts.plugin.system_folder = true;
  EXPECT_TRUE(only_finding(facts).remedy.starts_with("run ldconfig")) << "an entry is missing";
  facts.plugin.asked = "";
  EXPECT_EQ(only_finding(facts).level, Level::warning) << "this shell may not be the job's";
  facts.plugin.of_nccl = FoundPlugin{"/usr/lib/libnccl-net-ha.so", ""};
  facts.plugin.other_file = true;
  found = only_finding(facts);
  EXPECT_EQ(found.level, Level::warning);
  EXPECT_NE(found.what.find("/usr/lib/libnccl-net-ha.so"), std::string::npos) << found.what;
  EXPECT_NE(found.what.find("not /opt/ha/lib/libnccl-net-ha.so"), std::string::npos) << found.what;
  EXPECT_NE(found.remedy.find("LD_LIBRARY_PATH"), std::string::npos)
      << "ldconfig would not change the order: " << found.remedy;
  facts.plugin.other_file = false;
  EXPECT_EQ(only_finding(facts).level, Level::hint);
  EXPECT_EQ(only_finding(facts).remedy, "export NCCL_NET_PLUGIN=ha");
}

TEST(CheckFindings, ANetworkThatIsNotThePlugins) {
  HostFacts facts = good_host();
  facts.plugin.network = "ha";
  EXPECT_TRUE(judge(facts).empty()) << "NCCL does not look at upper and lower case";
  facts.plugin.network = "Socket";
  Finding found = only_finding(facts);
  EXPECT_EQ(found.level, Level::error);
  EXPECT_EQ(found.what, "NCCL_NET=Socket: NCCL uses that network and not this plugin");
  facts.conf.variables = {{"NCCL_NET", "Socket", "/etc/nccl.conf"}};
  EXPECT_NE(only_finding(facts).what.find("NCCL_NET=Socket (set in /etc/nccl.conf)"),
            std::string::npos);
  facts.plugin.asked = "";
  const auto all = judge(facts);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].level, Level::hint) << "NCCL_NET_PLUGIN is not set";
  EXPECT_EQ(all[1].level, Level::warning) << "this shell may not be the job's";
}

TEST(CheckFindings, APluginThatIsRequired) {
  const Demands demands{true};
  HostFacts facts = good_host();
  EXPECT_TRUE(judge(facts, demands).empty());
  facts.plugin.asked = "";
  ASSERT_EQ(judge(facts, demands).size(), 1U);
  EXPECT_EQ(judge(facts, demands)[0].level, Level::hint)
      << "the job may set it: NCCL would find it";
  facts.plugin.asked = "none";
  EXPECT_EQ(judge(facts, demands).at(0).level, Level::error);
  facts.plugin.asked = "";
  facts.plugin.of_nccl.reset();
  EXPECT_EQ(judge(facts, demands).at(0).level, Level::error);
  EXPECT_EQ(judge(facts).at(0).level, Level::warning);
  facts = good_host();
  facts.plugin.of_nccl = FoundPlugin{"/usr/lib/libnccl-net-other.so", ""};
  facts.plugin.other_file = true;
  EXPECT_EQ(judge(facts, demands).at(0).level, Level::error);
  EXPECT_EQ(judge(facts).at(0).level, Level::warning);
}

TEST(CheckFindings, OpenFilesFoldersAndSharedMemory) {
  HostFacts facts = good_host();
  facts.open_files = 20;
  EXPECT_EQ(only_finding(facts).level, Level::error);
  EXPECT_EQ(only_finding(facts).what, "this process may open 20 files only (ulimit -n)");
  EXPECT_EQ(only_finding(facts).rails.size(), 1U) << "it explains what pairs of this host show";
  facts.open_files = 512;
  EXPECT_EQ(only_finding(facts).level, Level::warning);
  EXPECT_TRUE(only_finding(facts).rails.empty()) << "connections come about with so many";
  facts.open_files = 1024;
  EXPECT_TRUE(judge(facts).empty());
  facts.folders = {{"HA_NCCL_COUNTERS_DIR", "/dev/shm", ""},
                   {"HA_NCCL_TRACE_DIR", "/x", "Permission denied"}};
  EXPECT_EQ(only_finding(facts).what, "HA_NCCL_TRACE_DIR=/x cannot be written: Permission denied");
  facts.folders.clear();
  facts.shm_free_bytes = 8 << 20;
  EXPECT_EQ(only_finding(facts).level, Level::warning);
  EXPECT_TRUE(only_finding(facts).what.starts_with("/dev/shm has 8 MiB left"));
}

TEST(CheckFindings, ANicThatRetriesForLongerThanFailoverMayTake) {
  HostFacts facts = good_host();
  facts.config.ib_timeout = 20;
  const Finding found = only_finding(facts);
  EXPECT_EQ(found.level, Level::warning);
  EXPECT_NE(found.what.find("retry for 34359 ms or more"), std::string::npos) << found.what;
  EXPECT_NE(found.remedy.find("HA_NCCL_FORCE_IB_TIMEOUT=14"), std::string::npos) << found.remedy;
  facts.rdma.ports.clear();
  for (const Finding& finding : judge(facts)) {
    EXPECT_EQ(finding.what.find("retry"), std::string::npos) << "datagrams have their own timers";
  }
}

TEST(CheckFindings, LockedMemory) {
  HostFacts facts = good_host();
  facts.memlock_bytes = 64 << 10;
  EXPECT_EQ(only_finding(facts).level, Level::error);
  EXPECT_NE(only_finding(facts).what.find("64 KiB"), std::string::npos);
  facts.memlock_bytes = 1ULL << 30;
  EXPECT_EQ(only_finding(facts).level, Level::warning);
  facts.may_lock = true;
  EXPECT_TRUE(judge(facts).empty());
  facts.may_lock = false;
  facts.rdma.ports.clear();
  for (const Finding& finding : judge(facts)) {
    EXPECT_EQ(finding.what.find("lock"), std::string::npos) << "datagrams lock nothing";
  }
}

TEST(CheckFindings, PortsThatAreDownMatterMoreWhenNothingIsLeft) {
  HostFacts facts = good_host();
  PortInfo down;
  down.device = "mlx5_2";
  down.netdev = "ib2";
  down.state = "down";
  facts.rdma.down.push_back(down);
  const Finding one = only_finding(facts);
  EXPECT_EQ(one.level, Level::warning);
  EXPECT_NE(one.remedy.find("ip link set ib2 up"), std::string::npos);
  facts.rdma.ports.clear();
  EXPECT_EQ(only_finding(facts).level, Level::warning) << "datagrams do";
  facts.config.fabric = "verbs";
  EXPECT_EQ(only_finding(facts).level, Level::error);
  facts.rdma.down[0].link = LinkLayer::infiniband;
  EXPECT_NE(only_finding(facts).remedy.find("subnet manager"), std::string::npos);
}

TEST(CheckFindings, NoRdmaIsAHintUnlessItIsForced) {
  HostFacts facts = good_host();
  facts.rdma.ports.clear();
  facts.rdma.notes = {"this host has no RDMA device"};
  EXPECT_EQ(only_finding(facts).level, Level::hint);
  facts.config.fabric = "ud";
  EXPECT_EQ(only_finding(facts).level, Level::error);
  facts.config.fabric = "datagram";
  EXPECT_TRUE(judge(facts).empty());
}

TEST(CheckFindings, Gids) {
  HostFacts facts = good_host();
  facts.rdma.ports[0].gid->roce_v2 = false;
  EXPECT_NE(only_finding(facts).what.find("RoCE v1"), std::string::npos);
  facts = good_host();
  facts.rdma.ports[0].gid->bytes = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1};
  EXPECT_NE(only_finding(facts).what.find("link-local"), std::string::npos);
  facts = good_host();
  PortInfo bare;
  bare.device = "mlx5_3";
  facts.rdma.without_gid.push_back(bare);
  EXPECT_EQ(only_finding(facts).level, Level::warning);
  EXPECT_NE(only_finding(facts).remedy.find("IP address"), std::string::npos);
  facts.rdma.ports.clear();
  EXPECT_EQ(only_finding(facts).level, Level::warning) << "datagrams do";
  facts.config.fabric = "verbs";
  EXPECT_EQ(only_finding(facts).level, Level::error) << "nothing is left";
}

TEST(CheckFindings, MtuSpeedAndPlace) {
  HostFacts facts = good_host();
  facts.rdma.ports[1].info.mtu = 1024;
  EXPECT_NE(only_finding(facts).remedy.find("4200"), std::string::npos);
  facts = good_host();
  facts.rdma.ports[1].info.speed_mbps = 100000;
  EXPECT_NE(only_finding(facts).what.find("mlx5_1:1 (ib1) 100000 Mbit/s"), std::string::npos);
  facts = good_host();
  facts.rdma.ports[1].info.numa_node = 3;
  EXPECT_EQ(only_finding(facts).level, Level::hint);
}

TEST(CheckFindings, GpuMemory) {
  HostFacts facts = good_host();
  facts.rdma.ports[0].gpu_memory = false;
  EXPECT_TRUE(judge(facts).empty()) << "there is no GPU";
  facts.nvidia = true;
  EXPECT_NE(only_finding(facts).remedy.find("nvidia_peermem"), std::string::npos);
}

TEST(CheckFindings, ARailThatIsDownIsLost) {
  HostFacts facts = good_host();
  facts.rdma.ports.clear();
  facts.config.fabric = "datagram";
  facts.lost = {interface("ib2", {10, 0, 2, 1})};
  Finding found = only_finding(facts);
  EXPECT_EQ(found.level, Level::error);
  EXPECT_NE(found.what.find("ib2 (10.0.2.1) is down: a rail is lost"), std::string::npos)
      << found.what;
  facts = good_host();
  facts.lost = {interface("eth1", {192, 168, 1, 1})};
  EXPECT_TRUE(judge(facts).empty()) << "RDMA carries the data";
  facts.rdma.down.push_back(rdma_port("mlx5_2", "eth1").info);
  facts.rdma.down.back().state = "DOWN";
  found = only_finding(facts);  // the port and what is above it are one fault with one remedy
  EXPECT_EQ(found.level, Level::error);
  EXPECT_NE(found.what.find("mlx5_2:"), std::string::npos) << found.what;
  EXPECT_NE(found.what.find("(eth1) is DOWN: a rail is lost"), std::string::npos) << found.what;
  EXPECT_NE(found.remedy.find("HA_NCCL_IB_HCA"), std::string::npos) << found.remedy;
  EXPECT_EQ(found.remedy.find("HA_NCCL_IFNAME"), std::string::npos) << found.remedy;
}

TEST(CheckFindings, AHostThatOnlyReachesItself) {
  HostFacts facts = good_host();
  facts.rdma.ports.clear();
  facts.config.fabric = "datagram";
  facts.interfaces = {interface("lo", {127, 0, 0, 1})};
  EXPECT_TRUE(judge(facts).empty()) << "a network that is called so";
  facts.interfaces[0].loopback = true;
  EXPECT_EQ(only_finding(facts).level, Level::warning);
  EXPECT_NE(only_finding(facts).what.find("up but loopback"), std::string::npos);
  facts.config.ifname = "lo";
  EXPECT_TRUE(judge(facts).empty()) << "it is wanted";
}

TEST(CheckFindings, AKernelThatCutsNoDatagrams) {
  HostFacts facts = good_host();
  facts.kernel.segmentation = false;
  EXPECT_TRUE(judge(facts).empty()) << "RDMA carries the data";
  facts.config.fabric = "datagram";
  facts.rdma.ports.clear();
  EXPECT_EQ(only_finding(facts).level, Level::hint);
  EXPECT_NE(only_finding(facts).remedy.find("4.18"), std::string::npos);
}

TEST(CheckFindings, FailoverThatIsOff) {
  HostFacts facts = good_host();
  facts.config.enable_backup = false;
  EXPECT_EQ(only_finding(facts).level, Level::hint);
  EXPECT_NE(only_finding(facts).what.find("HA_NCCL_ENABLE_BACKUP=0"), std::string::npos);
}

TEST(CheckFindings, WhatPciDevicesShare) {
  const std::string root = "/sys/devices/pci0000:00/0000:00:01.0/";
  EXPECT_EQ(shared_pci(root + "0000:01:00.0", root + "0000:01:00.1"), SharedPci::one_card);
  EXPECT_EQ(shared_pci(root + "0000:01:00.0/0000:02:00.0/0000:03:00.0",
                       root + "0000:01:00.0/0000:02:01.0/0000:04:00.0"),
            SharedPci::one_switch);
  EXPECT_EQ(shared_pci(root + "0000:01:00.0", "/sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0"),
            SharedPci::nothing);
  EXPECT_EQ(shared_pci("", root + "0000:01:00.0"), SharedPci::nothing);
  HostFacts facts = good_host();
  facts.rdma.ports[0].info.pci_path = root + "0000:01:00.0/0000:02:00.0/0000:03:00.0";
  facts.rdma.ports[1].info.pci_path = root + "0000:01:00.0/0000:02:01.0/0000:04:00.0";
  EXPECT_NE(only_finding(facts).what.find("behind one PCI switch"), std::string::npos);
}

TEST(CheckFindings, RailsInOneSubnet) {
  HostFacts facts = good_host();
  facts.interfaces[2] = interface("ib1", {10, 0, 0, 2});
  for (const char* name : {"ib0", "ib1"}) {
    facts.ipv4[name] = {2, 1, 2};
  }
  EXPECT_TRUE(judge(facts).empty()) << "set up for it";
  facts.ipv4["ib1"].rp_filter = 1;
  EXPECT_EQ(only_finding(facts).level, Level::error);
  facts.ipv4["ib1"] = {0, 0, 2};
  EXPECT_EQ(only_finding(facts).level, Level::warning);
  EXPECT_NE(only_finding(facts).remedy.find("net.ipv4.conf.ib1.arp_ignore=1"), std::string::npos);
  facts.interfaces[2].name = "eth1";
  EXPECT_TRUE(judge(facts).empty()) << "no rail is on it";
}

TEST(CheckFindings, ARailWhosePacketsLeaveByAnother) {
  HostFacts facts = good_host();
  facts.leaves_by["ib1"] = "ib0";
  EXPECT_EQ(only_finding(facts).level, Level::warning);
  EXPECT_NE(only_finding(facts).what.find("the address of ib1 leaves by ib0"), std::string::npos);
}

TEST(CheckFindings, RoutesToOtherHostsThatLeaveByAnotherRail) {
  HostFacts facts = good_host();
  facts.stray_routes = {{"ib1", "ib0", "10.0.1.2", "b"}, {"ib1", "ib0", "10.0.1.3", "c"}};
  const Finding found = only_finding(facts);
  EXPECT_EQ(found.level, Level::warning);
  EXPECT_EQ(found.what,
            "traffic from ib1 to 10.0.1.2 (b), 10.0.1.3 (c) leaves by ib0: a route prefers that");
  EXPECT_NE(found.remedy.find("ip route get 10.0.1.2"), std::string::npos) << found.remedy;
  facts.leaves_by["ib1"] = "ib0";
  EXPECT_NE(only_finding(facts).what.find("the address of ib1 leaves by ib0"), std::string::npos)
      << "the whole subnet does: one finding";
}

TEST(CheckFindings, DatagramBuffersCountWithoutRdma) {
  HostFacts facts = good_host();
  facts.kernel.granted_bytes = 212992;
  EXPECT_TRUE(judge(facts).empty());
  facts.config.fabric = "datagram";
  facts.rdma.ports.clear();
  EXPECT_NE(only_finding(facts).remedy.find("net.core.rmem_max"), std::string::npos);
}

TEST(CheckFindings, Processors) {
  HostFacts facts = good_host();
  facts.governors = {{"performance", 32}, {"powersave", 32}};
  EXPECT_NE(only_finding(facts).what.find("32 of 64"), std::string::npos);
  facts = good_host();
  facts.cpus_usable = 1;
  EXPECT_NE(only_finding(facts).remedy.find("more processors"), std::string::npos);
  facts.config.use_progress_thread = false;
  EXPECT_TRUE(judge(facts).empty());
  facts = good_host();
  facts.config.progress_cpus = "1-2,9";
  const Finding found = only_finding(facts);
  EXPECT_EQ(found.level, Level::warning);
  EXPECT_EQ(found.what, "HA_NCCL_PROGRESS_CPUS=1-2,9: this process may not use 9, but 0, 1, 2, 3");
  facts.config.progress_cpus = "1-2";
  EXPECT_TRUE(judge(facts).empty());
}

TEST(CheckFindings, SurviveTheWayThroughJson) {
  const auto back = finding_from_json(to_json(Finding{Level::warning, "what", "do"}));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->level, Level::warning);
  EXPECT_EQ(back->remedy, "do");
  const auto with_rails = finding_from_json(to_json(Finding{Level::error, "w", "d", {{3, "ib0"}}}));
  ASSERT_TRUE(with_rails);
  ASSERT_EQ(with_rails->rails.size(), 1U);
  EXPECT_EQ(with_rails->rails[0].rail, "ib0");
  EXPECT_EQ(with_rails->rails[0].host, 0U) << "who reads it knows whose it is";
  for (const char* bad : {"1", "{}", R"({"level":"x","what":"","remedy":""})",
                          R"({"level":1,"what":"","remedy":""})"}) {
    EXPECT_FALSE(finding_from_json(nlohmann::json::parse(bad))) << bad;
  }
}

TEST(CheckPairs, EverybodyMeetsEverybodyOnce) {
  for (uint32_t ranks = 1; ranks <= 17; ++ranks) {
    std::vector<std::vector<std::optional<uint32_t>>> all;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      all.push_back(meetings(rank, ranks));
      EXPECT_EQ(all[rank].size(), all[0].size());
    }
    std::set<std::pair<uint32_t, uint32_t>> met;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      for (size_t round = 0; round < all[rank].size(); ++round) {
        const auto partner = all[rank][round];
        if (partner) {
          ASSERT_LT(*partner, ranks);
          EXPECT_NE(*partner, rank);
          EXPECT_EQ(all[*partner][round], rank) << "the other must know";
          EXPECT_TRUE(met.insert({rank, *partner}).second) << "twice";
        }
      }
    }
    EXPECT_EQ(met.size(), size_t{ranks} * (ranks - 1));
  }
}

PairResult pair(uint32_t from, uint32_t to, double rate) {
  PairResult made;
  made.from = from;
  made.to = to;
  made.device_name = "rail0";
  made.round_trip_us = 10;
  made.gigabytes_per_s = rate;
  made.alone = true;
  made.own_gigabytes_per_s = 12;
  return made;
}

TEST(CheckPairs, BothSidesSeeOnePair) {
  PairResult bad = pair(0, 1, 0);
  bad.error = "no way";
  bad.warnings = {"w"};
  const auto merged = merge({pair(0, 1, 3), bad, pair(0, 2, 3), bad}, {"a", "b", "c"});
  ASSERT_EQ(merged.size(), 2U);
  EXPECT_EQ(merged[0].error, "no way");
  EXPECT_EQ(merged[0].warnings.size(), 1U);
  EXPECT_TRUE(merged[1].error.empty());
  PairResult slower = pair(0, 1, 3);
  slower.own_gigabytes_per_s = 0;
  EXPECT_EQ(merge({pair(0, 1, 3), slower}, {"a", "b"})[0].own_gigabytes_per_s, 0)
      << "what the slower host moves to itself counts";
}

TEST(CheckPairs, ErrorsOfBothSidesAreTold) {
  PairResult lower = pair(0, 1, 0);
  lower.error = "the other side could not listen";
  PairResult higher = pair(0, 1, 0);
  higher.seen_by = 1;
  higher.error = "cannot listen: Too many open files";
  const std::vector<std::string> hosts{"a", "b"};
  auto merged = merge({lower, higher}, hosts);
  ASSERT_EQ(merged.size(), 1U);
  EXPECT_EQ(merged[0].error,
            "a: the other side could not listen; b: cannot listen: Too many open files");
  EXPECT_NE(judge(merged, hosts).at(0).remedy.find("ulimit -n"), std::string::npos);
  higher.error = lower.error;
  EXPECT_EQ(merge({lower, higher}, hosts)[0].error, lower.error) << "once is enough";
  higher.error.clear();
  higher.warnings = {"cannot register memory; RLIMIT_MEMLOCK is 64 KiB"};
  merged = merge({lower, higher}, hosts);
  EXPECT_EQ(merged[0].error, lower.error);
  const auto found = judge(merged, hosts);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].remedy.find("ulimit -l"), std::string::npos) << "a warning names the cause";
}

TEST(CheckPairs, NumbersAreToldOnce) {
  PairResult one = pair(0, 1, 3);
  EXPECT_TRUE(is_worth_telling(one, 0));
  EXPECT_TRUE(is_worth_telling(one, 1)) << "what it moved to itself";
  one.alone = false;
  EXPECT_FALSE(is_worth_telling(one, 1));
  one.warnings = {"w"};
  EXPECT_TRUE(is_worth_telling(one, 1));
  one.warnings.clear();
  one.error = "e";
  EXPECT_TRUE(is_worth_telling(one, 1));
}

TEST(CheckPairs, ErrorsWarningsAndOutliersBecomeFindings) {
  std::vector<PairResult> pairs{pair(0, 1, 10), pair(0, 2, 10), pair(1, 2, 1)};
  const std::vector<std::string> hosts{"a", "b", "c"};
  auto found = judge(pairs, hosts);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].level, Level::warning);
  EXPECT_EQ(found[0].what, "b and c on rail0: 1.000 GB/s, others carry 10.000");
  pairs[2] = pair(1, 2, 9);
  EXPECT_TRUE(judge(pairs, hosts).empty());
  pairs[2].round_trip_us = 100;
  ASSERT_EQ(judge(pairs, hosts).size(), 1U);
  EXPECT_EQ(judge(pairs, hosts)[0].level, Level::hint);
  pairs[2].error = "cut";
  pairs[0].warnings = {"MTU"};
  found = judge(pairs, hosts);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].level, Level::error);
  EXPECT_EQ(found[1].level, Level::warning);
}

TEST(CheckPairs, LinesOfOnePairAreOneFindingAndGoodNewsNone) {
  std::vector<PairResult> pairs{pair(0, 1, 10)};
  pairs[0].warnings = {"path 0 of the connection to b is down: x",
                       "path 0 of the connection to b is back after 5 ms: y"};
  auto found = judge(pairs, {"a", "b"});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].what.find("is back"), std::string::npos) << found[0].what;
  pairs[0].warnings = {"one", "two"};
  found = judge(pairs, {"a", "b"});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].what.find("one; two"), std::string::npos) << found[0].what;
  pairs[0].error = "late";
  EXPECT_EQ(judge(pairs, {"a", "b"}).size(), 1U) << "the error says it";
}

TEST(CheckPairs, TheRemedyFitsTheError) {
  const auto remedy = [](const char* error) {
    std::vector<PairResult> pairs{pair(0, 1, 10)};
    pairs[0].error = error;
    return judge(pairs, {"a", "b"}).at(0).remedy;
  };
  EXPECT_NE(remedy("cannot listen: Too many open files (limit 64)").find("ulimit -n"),
            std::string::npos);
  EXPECT_NE(remedy("cannot register; RLIMIT_MEMLOCK is 64 KiB").find("ulimit -l"),
            std::string::npos);
  EXPECT_NE(remedy("check that UDP is not filtered between").find("let UDP through"),
            std::string::npos);
  EXPECT_NE(remedy("no answer").find("check cable"), std::string::npos);
}

TEST(CheckPairs, SurviveTheWayThroughJson) {
  PairResult result = pair(1, 2, 3.5);
  result.error = "e";
  result.warnings = {"w"};
  const auto back = pair_from_json(to_json(result));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->to, 2U);
  EXPECT_EQ(back->warnings, result.warnings);
  EXPECT_TRUE(back->alone);
  EXPECT_EQ(back->own_gigabytes_per_s, 12);
  EXPECT_FALSE(pair_from_json(nlohmann::json::parse(R"({"from":0})")));
  EXPECT_FALSE(pair_from_json(nlohmann::json::parse("[1]")));
}

HostDevices host_devices(std::initializer_list<int> rails) {
  HostDevices made;
  for (const int rail : rails) {
    made.names.push_back("rail" + std::to_string(rail));
    made.interfaces.push_back(made.names.back());
    made.networks.push_back("10.0." + std::to_string(rail) + ".0/24");
  }
  return made;
}

TEST(CheckPairs, AHostWithFewerDevicesIsNamedWithWhatIsKnownOfIt) {
  const std::vector<std::string> hosts{"a", "b", "c"};
  std::vector<HostDevices> all{host_devices({0, 1}), host_devices({0, 1}), host_devices({0, 1})};
  EXPECT_TRUE(judge_device_counts(all, hosts).empty());
  all[1] = host_devices({1});
  auto found = judge_device_counts(all, hosts);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].level, Level::warning);
  EXPECT_EQ(found[0].what,
            "b has 1 usable data interface (rail1), other hosts have 2: one is down, has no "
            "address, or is left out by a setting");
  ASSERT_EQ(found[0].rails.size(), 1U) << "rail1 is tried with the rail0 of others";
  EXPECT_EQ(found[0].rails[0].host, 1U);
  EXPECT_EQ(found[0].rails[0].rail, "rail1");
  all[1].bare = {"rail0"};
  EXPECT_TRUE(judge_device_counts(all, hosts)
                  .at(0)
                  .what.ends_with(": rail0 has only a link-local address"));
  all[1] = host_devices({0});
  all[1].only = "HA_NCCL_IFNAME==rail0";
  found = judge_device_counts(all, hosts);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].what.find("HA_NCCL_IFNAME==rail0 on that host leaves out others"),
            std::string::npos)
      << found[0].what;
  EXPECT_TRUE(found[0].rails.empty()) << "rail0 is tried with rail0";
  all[1].lost = 1;
  EXPECT_TRUE(judge_device_counts(all, hosts).empty()) << "the host itself says what it has lost";
}

}  // namespace
}  // namespace nccl_ha::tools
