// nccl-ha check on labs into which a fault was planted, and on labs of many shapes without one.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/mesh_lab.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

using nlohmann::json;

struct Planted {
  const char* name;
  std::vector<const char*> said;  ///< parts of findings; of "a|b" one is enough
  const char* on_second = "";     ///< commands on h2 before its check; the first host waits for it
  const char* script = "";        ///< of the lab
  Environment environment = {};
  int status = 1;  ///< -1: whether pairs find another way is not what this asks
  const char* topology = "pair";
  const char* swapped = "";  ///< interfaces that have each other's cable
  bool alone = false;        ///< no other error or warning is found
};

void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }

/// The check's document, without the lab's prefix.
json document_of(const ToolRun& run) {
  std::string text;
  size_t from = 0;
  for (size_t end = run.out.find('\n'); end != std::string::npos; end = run.out.find('\n', from)) {
    const std::string line = run.out.substr(from, end - from);
    from = end + 1;
    if (line.starts_with("[h1] ")) {
      text += line.substr(5) + "\n";
    }
  }
  return json::parse(text, nullptr, false);
}

/// Every finding's text, errors and warnings only unless `hints`.
std::vector<std::string> findings_of(const json& document, bool hints) {
  std::vector<std::string> all;
  const auto add = [&](const json& list) {
    for (const json& one : list) {
      if (hints || one["level"] != "hint") {
        all.push_back(one["what"]);
      }
    }
  };
  for (const json& host : document["hosts"]) {
    add(host["findings"]);
  }
  add(document["network"]);
  return all;
}

/// What every host of these labs says here: it is the machine's, not the lab's.
bool is_of_the_machine(const std::string& finding) {
  return finding.find("the kernel grants") != std::string::npos;
}

ToolRun lab_check(const std::string& topology, const std::string& script,
                  const std::string& on_second, const Environment& environment,
                  const std::vector<std::string>& more = {}) {
  std::vector<std::string> all{
      "lab", "run", topology, "-q", "--env", "HA_NCCL_FABRIC=datagram", "--timeout", "100"};
  if (!script.empty()) {
    all.insert(all.end(), {"--script", script});
  }
  for (const auto& [name, value] : environment) {
    all.insert(all.end(), {"--env", name + "=" + value});
  }
  all.insert(all.end(), more.begin(), more.end());
  all.insert(all.end(),
             {"--", "sh", "-c",
              "if [ \"$RANK\" = 1 ]; then " + (on_second.empty() ? std::string(":") : on_second) +
                  "; fi; exec nccl-ha check --json --patience 3"});
  return run_program(NHA_TOOL_FILE, all);
}

class PlantedFault : public ::testing::TestWithParam<Planted> {};

TEST_P(PlantedFault, IsFoundAndNamed) {
  const Planted& planted = GetParam();
  std::vector<std::string> more;
  if (*planted.swapped != '\0') {
    more = {"--swap", planted.swapped};
  }
  const ToolRun run =
      lab_check(planted.topology, planted.script, planted.on_second, planted.environment, more);
  if (planted.status >= 0) {
    EXPECT_EQ(run.status, planted.status) << run.out << run.err;
  }
  const json document = document_of(run);
  ASSERT_TRUE(document.is_object()) << run.out << run.err;
  const auto found = document.contains("hosts") ? findings_of(document, true)
                                                : std::vector{document.value("error", "")};
  if (planted.alone) {
    auto grave = findings_of(document, false);
    std::erase_if(grave, is_of_the_machine);
    EXPECT_EQ(grave.size(), 1U) << document.dump(1);
  }
  for (const std::string parts : planted.said) {
    const size_t bar = parts.find('|');
    const std::string other = bar == std::string::npos ? parts : parts.substr(bar + 1);
    EXPECT_TRUE(std::any_of(found.begin(), found.end(),
                            [&](const std::string& one) {
                              return one.find(parts.substr(0, bar)) != std::string::npos ||
                                     one.find(other) != std::string::npos;
                            }))
        << parts << " is not in " << document.dump(1);
  }
}

const Planted planted_faults[] = {
    {"first_rail_down", {"rail0 (198.18.0.2) is down: a rail is lost"}, "ip link set rail0 down"},
    {"second_rail_down", {"rail1 (198.18.1.2) is down: a rail is lost"}, "ip link set rail1 down"},
    // Before or after a host looks at its interfaces.
    {"rail_that_goes_meanwhile", {"on rail1|rail1 (198.18.1."}, "", "0s cut rail1"},
    {"first_rail_silent", {"h1 and h2 on rail0"}, "", "0s cut rail0 --silent"},
    {"second_rail_silent", {"h1 and h2 on rail1"}, "", "0s cut rail1 --silent"},
    {"small_mtu_between_first",
     {"using 1500. Check the MTU of the switches between"},
     "",
     "0s mtu rail0 1500",
     {},
     0},
    {"small_mtu_between_second", {"on rail1: NET/HA : path"}, "", "0s mtu rail1 1500", {}, 0},
    {"setting_leaves_a_rail_out_on_one_host",
     {"h2 has 1 usable data interface (rail0), other hosts have 2: HA_NCCL_IFNAME==rail0"},
     "export HA_NCCL_IFNAME==rail0",
     "",
     {},
     0},
    {"rail_without_address_on_one_host",
     {"h2 has 1 usable data interface (rail0), other hosts have 2"},
     "ip addr flush dev rail1",
     "",
     {},
     0},
    {"udp_blocked",
     {"UDP is not filtered between the hosts"},
     "nft add table ip t && nft 'add chain ip t in { type filter hook input priority 0; }' && "
     "nft add rule ip t in iifname rail0 meta l4proto udp drop"},
    {"udp_blocked_on_both_rails",
     {"h1 and h2 on rail0", "rail1", "UDP is not filtered"},
     "nft add table ip t && nft 'add chain ip t in { type filter hook input priority 0; }' && "
     "nft add rule ip t in meta l4proto udp drop"},
    {"tcp_blocked",
     {"h1 and h2 on rail1"},
     "nft add table ip t && nft 'add chain ip t in { type filter hook input priority 0; }' && "
     "nft add rule ip t in iifname rail1 meta l4proto tcp drop"},
    {"failover_off_on_one_host",
     {"HA_NCCL_ENABLE_BACKUP differs: 0 on h2; 1 on h1"},
     "export HA_NCCL_ENABLE_BACKUP=0",
     "",
     {},
     0},
    {"no_fallback_paths_on_one_host",
     {"HA_NCCL_SHADOW_PATHS differs: 0 on h2; 1 on h1"},
     "export HA_NCCL_SHADOW_PATHS=0",
     "",
     {},
     0},
    {"failover_off_everywhere",
     {"failover is switched off"},
     "",
     "",
     {{"HA_NCCL_ENABLE_BACKUP", "0"}},
     0},
    {"timeouts_differ",
     {"settings differ between hosts: HA_NCCL_RTO_MS"},
     "export HA_NCCL_RTO_MS=500",
     "",
     {},
     0},
    {"mesh_ports_differ",
     {"HA_NCCL_MESH_PORT differs"},
     "export HA_NCCL_MESH_PORT=18741",
     "",
     {},
     1,
     "line-3"},
    {"address_of_another_host",
     {"198.18.1.1 is the address of several: h1 (rail1), h2 (rail1)"},
     "ip addr flush dev rail1 && ip addr add 198.18.1.1/24 dev rail1"},
    {"rails_crossed",
     {"rails are crossed: rail0 in 198.18.0.0/24, rail1 in 198.18.1.0/24 on h1"},
     "ip addr flush dev rail0 && ip addr flush dev rail1 && ip addr add 198.18.1.2/24 dev rail0 && "
     "ip addr add 198.18.0.2/24 dev rail1"},
    // Linux answers for an address on whatever interface it is asked, so that all of it works.
    {"cables_swapped_on_one_of_three_hosts",
     {"the cables of h2 are swapped: traffic for 198.18.0.2 (rail0 of h2) arrives at rail1, "
      "traffic for 198.18.1.2 (rail1 of h2) arrives at rail0"},
     "",
     "",
     {},
     1,
     "rails-3x2",
     "h2.rail0,h2.rail1"},
    {"cables_swapped_where_addresses_keep_to_their_interface",
     {"the cables of h2 are swapped: traffic for 198.18.0.1 (rail0 of h1) arrives at rail1",
      "pairs of hosts fail"},
     "sysctl -q -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.rp_filter=1",
     "",
     {},
     1,
     "rails-3x2",
     "h2.rail0,h2.rail1"},
    {"both_rails_in_one_network",
     {"rail0, rail1 of h2 are both in 198.18.0.0/24"},
     "ip addr flush dev rail1 && ip addr add 198.18.0.77/24 dev rail1"},
    {"mtu_of_one_interface",
     {"the MTU differs in 198.18.0.0/24: 1500 bytes on h2 (rail0)"},
     "ip link set rail0 mtu 1500",
     "",
     {},
     0},
    {"few_descriptors", {"this process may open 20 files only (ulimit -n)"}, "ulimit -n 20"},
    {"setting_out_of_range",
     {"HA_NCCL_RTO_MS=1: not a valid value"},
     "export HA_NCCL_RTO_MS=1",
     "",
     {},
     2},
    {"setting_with_a_slip",
     {"HA_NCL_RTO_MS is not known and has no effect"},
     "export HA_NCL_RTO_MS=500",
     "",
     {},
     0},
    {"equal_names",
     {"ranks 0 and 1 are on two hosts that are both called h1"},
     "hostname h1",
     "",
     {},
     0},
    {"plugin_that_nccl_does_not_find",
     {"with NCCL_NET_PLUGIN=/none.so NCCL finds nothing"},
     "export NCCL_NET_PLUGIN=/none.so"},
    {"rail_down_and_failover_off",
     {"rail1 (198.18.1.2) is down", "HA_NCCL_ENABLE_BACKUP differs"},
     "ip link set rail1 down; export HA_NCCL_ENABLE_BACKUP=0"},
    {"small_mtu_and_address_twice",
     {"using 1500", "198.18.1.1 is the address of several"},
     "ip addr flush dev rail1 && ip addr add 198.18.1.1/24 dev rail1",
     "0s mtu rail0 1500"},
    // One cause is one finding, and accuses no cable.
    {"udp_blocked_on_one_of_three_hosts",
     {"no host reaches h2 on rail0 or rail1: "},
     "nft add table inet t && nft 'add chain inet t in { type filter hook input priority 0; }' && "
     "nft add rule inet t in iifname != mgmt meta l4proto udp drop",
     "",
     {},
     1,
     "rails-3x2",
     "",
     true},
    {"few_descriptors_on_one_of_three_hosts",
     {"this process may open 20 files only (ulimit -n)"},
     "ulimit -n 20",
     "",
     {},
     1,
     "rails-3x2",
     "",
     true},
    {"second_rail_chosen_on_one_of_three_hosts",
     {"h2 has 1 usable data interface (rail1), other hosts have 2: HA_NCCL_IFNAME==rail1"},
     "export HA_NCCL_IFNAME==rail1",
     "",
     {},
     -1,
     "rails-3x2",
     "",
     true},
    {"route_over_the_other_rail",
     {"traffic from rail1 to 198.18.1.1 (h1) leaves by rail0: a route prefers that"},
     "ip route add 198.18.1.1/32 dev rail0",
     "",
     {},
     -1,
     "pair",
     "",
     true},
    {"address_lost_and_one_of_its_own_left",
     {"h2 has 1 usable data interface (rail0), other hosts have 2: rail1 has only a link-local"},
     "ip -4 addr flush dev rail1 && ip addr add 169.254.7.7/16 dev rail1",
     "",
     {},
     0,
     "rails-3x2",
     "",
     true},
    {"slow_rail_of_two_hosts",
     {"h1 and h2 on rail1: 0.00"},
     "",
     "0s slow rail1 20mbit",
     {},
     0,
     "pair",
     "",
     true},
    {"slow_rail_of_three_hosts",
     {"rail1: all pairs of hosts: 0.00"},
     "",
     "0s slow rail1 20mbit",
     {},
     0,
     "rails-3x2",
     "",
     true},
    {"rail_with_loss",
     {"h1 and h2 on rail1: packets get lost: "},
     "",
     "0s lose rail1 5%",
     {},
     0,
     "pair",
     "",
     true},
    {"another_network_chosen_on_one_host",
     {"NCCL_NET=Socket: NCCL uses that network and not this plugin"},
     "export NCCL_NET=Socket",
     "",
     {{"NCCL_NET_PLUGIN", "ha"}},
     1,
     "pair",
     "",
     true},
    {"another_network_chosen_by_a_file",
     {"NCCL_NET=IB (set in /dev/shm/nccl.conf): NCCL uses that network"},
     "echo NCCL_NET=IB > /dev/shm/nccl.conf; export NCCL_CONF_FILE=/dev/shm/nccl.conf",
     "",
     {{"NCCL_NET_PLUGIN", "ha"}},
     1,
     "pair",
     "",
     true},
    {"plugin_not_asked_for_on_one_host",
     {"NCCL_NET_PLUGIN differs: ha on h1, not set on h2"},
     "unset NCCL_NET_PLUGIN",
     "",
     {{"NCCL_NET_PLUGIN", "ha"}},
     1,
     "pair",
     "",
     true},
    {"folder_for_traces_that_is_not_there",
     {"HA_NCCL_TRACE_DIR=/proc/none cannot be written: No such file or directory"},
     "export HA_NCCL_TRACE_DIR=/proc/none",
     "",
     {},
     0,
     "pair",
     "",
     true},
    {"rail_down_and_another_network_chosen",
     {"rail1 (198.18.1.2) is down: a rail is lost", "NCCL_NET=Socket: NCCL uses that network"},
     "ip link set rail1 down; export NCCL_NET=Socket",
     "",
     {{"NCCL_NET_PLUGIN", "ha"}}},
    // Many hosts, and two faults at once.
    {"rail_down_on_one_of_five_hosts",
     {"rail1 (198.18.1.2) is down: a rail is lost"},
     "ip link set rail1 down",
     "",
     {},
     1,
     "rails-5x2",
     "",
     true},
    {"udp_blocked_on_one_of_five_hosts",
     {"no host reaches h2 on rail0 or rail1: "},
     "nft add table inet t && nft 'add chain inet t in { type filter hook input priority 0; }' && "
     "nft add rule inet t in iifname != mgmt meta l4proto udp drop",
     "",
     {},
     1,
     "rails-5x2",
     "",
     true},
    {"slow_rail_of_five_hosts",
     {"rail1: all pairs of hosts: 0.00"},
     "",
     "0s slow rail1 20mbit",
     {},
     0,
     "rails-5x2",
     "",
     true},
    {"failover_off_on_one_of_eight_hosts",
     {"HA_NCCL_ENABLE_BACKUP differs: 1 on h1, h3, h4, h5, h6, h7, h8; 0 on h2"},
     "export HA_NCCL_ENABLE_BACKUP=0",
     "",
     {},
     0,
     "rails-8x1"},
    {"rail_with_loss_and_failover_off_on_one_host",
     {"h1 and h2 on rail1: packets get lost: ", "HA_NCCL_ENABLE_BACKUP differs"},
     "export HA_NCCL_ENABLE_BACKUP=0",
     "0s lose rail1 5%",
     {},
     0},
    {"retry_budget_below_the_default",
     {"HA_NCCL_RTO_MS=1000 (the default) must not be longer than HA_NCCL_RETRY_BUDGET_MS=500"},
     "export HA_NCCL_RETRY_BUDGET_MS=500",
     "",
     {},
     0},
};

INSTANTIATE_TEST_SUITE_P(Faults, PlantedFault, ::testing::ValuesIn(planted_faults),
                         [](const auto& one) { return std::string(one.param.name); });

/// Of hosts that are cabled without a switch.
Planted in_mesh(const char* name, const char* topology, const char* said, int status,
                const char* on_second, const char* script = "", Environment environment = {}) {
  return {name, {said}, on_second, script, std::move(environment), status, topology, "", true};
}

const Planted planted_in_meshes[] = {
    in_mesh("cable_missing_from_a_ring", "line-4",
            "HA_NCCL_MESH_TOPOLOGY expects a ring, but 4 hosts make a line", 0, "", "",
            {{"HA_NCCL_MESH_TOPOLOGY", "ring"}}),
    in_mesh("half_of_a_port_down", "gb10-4",
            "enP2p1s0f0np0 (one of 2 ways to port p0) of h2 is down: half of the port is idle", 0,
            "ip link set enP2p1s0f0np0 down"),
    in_mesh("slow_half", "gb10-4", "the cable between h1 (enp1s0f1np1) and h2 (enp1s0f0np0): 0.0",
            0, "", "0s slow h1-h2.0 20mbit"),
    in_mesh("mtu_of_one_end", "gb10-4",
            "the MTU differs: 1500 bytes at enp1s0f1np1 (one of 2 ways to port p1) of h2", 0,
            "ip link set enp1s0f1np1 mtu 1500"),
    in_mesh("cable_with_loss", "ring-4",
            "the cable between h1 (to-h2) and h2 (to-h1) loses packets", 0, "", "0s lose h1-h2 5%"),
    in_mesh("cable_down", "ring-4", "the cable between h1 (to-h2) and h2 (to-h1) has no link", 1,
            "", "0s cut h1-h2"),
    in_mesh("cable_that_carries_nothing", "ring-4",
            "the cable between h2 (to-h3) and h3 (to-h2) carries nothing", 1, "",
            "0s cut h2-h3 --silent"),
    in_mesh("cable_that_a_setting_leaves_out", "ring-4",
            "HA_NCCL_MESH_IFNAME==to-h1 leaves out to-h3 of h2", 1,
            "export HA_NCCL_MESH_IFNAME==to-h1"),
    in_mesh("wrong_subnet_at_one_end", "ring-4",
            "the cable between h2 (to-h3) and h3 (to-h2) has ends in different networks", 1,
            "ip -4 addr flush dev to-h3; ip addr add 10.9.9.2/24 dev to-h3"),
    in_mesh("two_cables_swapped", "plan-ring", "the cables of nic1 and nic2 of h2 are swapped", 1,
            "ip -4 addr flush dev nic1; ip -4 addr flush dev nic2; "
            "ip addr add 192.168.101.2/24 dev nic2; ip addr add 192.168.102.2/24 dev nic1"),
    in_mesh("host_that_does_not_relay", "line-3", "HA_NCCL_MESH_RELAY=off on h2", 1,
            "export HA_NCCL_MESH_RELAY=off"),
    in_mesh("udp_dropped", "ring-4", "h2 does not hear h1 (to-h2) and h3 (to-h2)", 1,
            "nft add table inet t && "
            "nft 'add chain inet t in { type filter hook input priority 0; }' && "
            "nft add rule inet t in iifname != mgmt meta l4proto udp drop"),
};

INSTANTIATE_TEST_SUITE_P(Meshes, PlantedFault, ::testing::ValuesIn(planted_in_meshes),
                         [](const auto& one) { return std::string(one.param.name); });

struct Healthy {
  const char* name;
  const char* topology;
  Environment environment;
  std::vector<std::string> more;
};
void PrintTo(const Healthy& healthy, std::ostream* out) { *out << healthy.name; }

class HealthyLab : public ::testing::TestWithParam<Healthy> {};

TEST_P(HealthyLab, HasNothingToSay) {
  const Healthy& healthy = GetParam();
  const ToolRun run = lab_check(healthy.topology, "", "", healthy.environment, healthy.more);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  const json document = document_of(run);
  ASSERT_TRUE(document.is_object() && document.contains("hosts")) << run.out << run.err;
  EXPECT_GE(document["pairs"].size(), 1U);
  for (const std::string& finding : findings_of(document, false)) {
    EXPECT_TRUE(is_of_the_machine(finding)) << finding;
  }
}

const Healthy healthy_labs[] = {
    {"pair", "pair", {}, {}},
    {"one_rail", "rails-2x1", {}, {}},
    {"three_rails", "rails-2x3", {}, {}},
    {"four_rails", "rails-2x4", {}, {}},
    {"three_hosts", "rails-3x2", {}, {}},
    {"three_hosts_one_rail", "rails-3x1", {}, {}},
    {"four_hosts", "rails-4x2", {}, {}},
    {"four_hosts_one_rail", "rails-4x1", {}, {}},
    {"five_hosts", "rails-5x1", {}, {}},
    {"five_hosts_two_rails", "rails-5x2", {}, {}},
    {"eight_hosts", "rails-8x1", {}, {}},
    {"small_mtu", "pair", {}, {"--mtu", "1500"}},
    {"jumbo_frames", "pair", {}, {"--mtu", "9000"}},
    {"least_mtu", "pair", {}, {"--mtu", "1280"}},
    {"callers_drive", "pair", {{"HA_NCCL_USE_PROGRESS_THREAD", "0"}}, {}},
    {"two_threads", "pair", {{"HA_NCCL_PROGRESS_THREADS", "2"}}, {}},
    {"one_rail_chosen", "pair", {{"HA_NCCL_IFNAME", "=rail1"}}, {}},
    {"rails_in_an_order",
     "pair",
     {{"HA_NCCL_HCA_SOUT", "rail1"}, {"MPIB_HCA_SUP", "rail0"}, {"HA_NCCL_OOB_IF", "rail1"}},
     {}},
    {"rails_by_name", "pair", {{"HA_NCCL_IFNAME", "rail"}}, {}},
    {"small_windows", "pair", {{"HA_NCCL_DGRAM_WINDOW", "64"}}, {}},
    {"no_offload", "pair", {{"HA_NCCL_DGRAM_GSO", "0"}}, {}},
    {"ports_in_a_range", "pair", {{"HA_NCCL_LISTEN_PORTS", "20000-20100"}}, {}},
    {"quick_heartbeats", "pair", {{"HA_NCCL_HEARTBEAT_MS", "50"}}, {}},
    {"no_fallback_paths", "pair", {{"HA_NCCL_SHADOW_PATHS", "0"}}, {}},
    {"two_of_three_hosts", "rails-3x2", {}, {"--on", "h1,h2"}},
    {"ring_of_three", "ring-3", {}, {}},
    {"ring_of_four", "ring-4", {{"HA_NCCL_MESH_TOPOLOGY", "ring"}}, {}},
    {"ring_of_five", "ring-5", {}, {}},
    {"ring_of_six", "ring-6", {}, {}},
    {"ring_of_eight", "ring-8", {}, {}},
    {"line_of_two", "line-2", {}, {}},
    {"line_of_three", "line-3", {}, {}},
    {"line_of_four", "line-4", {}, {}},
    {"line_of_five", "line-5", {}, {}},
    {"star", "star-4", {}, {}},
    {"partial_mesh_of_five", "mesh-5", {}, {}},
    {"partial_mesh_of_six", "mesh-6-2", {}, {}},
    {"line_with_subnets", "plan-line", {}, {}},
    {"ring_with_subnets", "plan-ring", {}, {}},
    {"three_boxes", "gb10-3", {}, {}},
    {"four_boxes", "gb10-4", {}, {}},
};

INSTANTIATE_TEST_SUITE_P(Shapes, HealthyLab, ::testing::ValuesIn(healthy_labs),
                         [](const auto& one) { return std::string(one.param.name); });

struct WithNodes {
  const char* topology;
  const char* shape;
  size_t hosts;
};
void PrintTo(const WithNodes& mesh, std::ostream* out) { *out << mesh.topology; }

class HealthyMeshWithNodes : public ::testing::TestWithParam<WithNodes> {};

TEST_P(HealthyMeshWithNodes, HasNothingToSay) {
  MeshLab lab(NHA_TOOL_FILE);
  const ToolRun run = lab.run_with_nodes(GetParam().topology, GetParam().shape, GetParam().hosts,
                                         "nccl-ha check --json --patience 3");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  const json document = document_of(run);
  ASSERT_TRUE(document.is_object() && document.contains("mesh")) << run.out << run.err;
  EXPECT_EQ(document["mesh"]["relays"], "the relay nodes");
  for (const std::string& finding : findings_of(document, false)) {
    EXPECT_TRUE(is_of_the_machine(finding)) << finding;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HealthyMeshWithNodes,
                         ::testing::Values(WithNodes{"ring-4", "ring: 4", 4},
                                           WithNodes{"mesh-6-2", "partial mesh: 6", 6},
                                           WithNodes{"gb10-4", "ring: 4", 4}),
                         [](const auto& one) {
                           std::string name = one.param.topology;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace nccl_ha::tests
