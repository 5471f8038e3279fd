// Two NICs of each host in one switch and one subnet: each path leaves by its own NIC, so that
// either of them may go.
#include <gtest/gtest.h>
#include <unistd.h>

#include <regex>
#include <string>
#include <vector>

#include "tests/support/paths_in_lab.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

constexpr const char* all_bytes_right = "Out of bounds values : 0 OK";

struct Mode {
  const char* name;
  const char* threads;
  bool ipv6;
};
void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }

/// Runs `command` on both hosts, which is to use $perf.
ToolRun run_flat(const Mode& mode, const std::string& command) {
  static int labs = 0;
  std::vector<std::string> arguments{
      "lab",       "run",
      "flat-2x2",  "-q",
      "--timeout", "110",
      "--name",    "flat" + std::to_string(getpid()) + "." + std::to_string(labs++),
      "--env",     mode.threads,
      "--env",     "HA_NCCL_FABRIC=datagram",
      "--env",     "HA_NCCL_SLOW_FACTOR=0",  // neighbours of the test make hosts slow, no path
      "--env",     "HA_NCCL_DEBUG=2",
      "--env",     "NCCL_DEBUG=INFO"};
  std::string before = "perf='nccl-ha perf all_reduce -b 256K -e 256K -w 0 -v --timeout 100'; ";
  if (mode.ipv6) {
    arguments.insert(arguments.end(), {"--env", "HA_NCCL_SOCKET_FAMILY=AF_INET6"});
    before +=
        "PATH=$PATH:/usr/sbin:/sbin; for rail in 0 1; do "
        "ip addr add fd00:18::$rail:$((RANK + 1))/64 dev rail$rail nodad; done; ";
  }
  arguments.insert(arguments.end(), {"--", "bash", "-c", before + command + " 2>&1"});
  return run_program(NHA_TOOL_FILE, arguments, {}, std::chrono::seconds(120));
}

/// What the fault with that number cost, in milliseconds; negative: it is not told.
double stall_of(const std::string& output, int fault) {
  std::smatch found;
  const std::regex line("# fault " + std::to_string(fault) + R"(: [^\n]*: stall ([\d.]+) ms)");
  return std::regex_search(output, found, line) ? std::stod(found[1]) : -1;
}

class OneSubnet : public testing::TestWithParam<Mode> {};

// Heartbeats are all that a path carries that stands by.
TEST_P(OneSubnet, WhatStandsByLeavesByItsOwnNic) {
  const ToolRun run = run_flat(
      GetParam(),
      "export HA_NCCL_HEARTBEAT_MS=10; sent() { cat /sys/class/net/$1/statistics/tx_packets; }; "
      "before=$(sent rail1); $perf --seconds 4 && "
      "echo \"rail1 sent $(($(sent rail1) - before > 100 ? 1 : 0)) times a hundred packets\"");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, all_bytes_right), 1U) << run.out;
  EXPECT_EQ(count(run.out, "rail1 sent 1 times a hundred packets"), 2U)
      << "on each host: " << run.out;
  EXPECT_EQ(count(run.out, "fail together"), 0U) << run.out;
}

// The switch loses its ports to rail0, later those to rail1, whatever the carrier at the hosts is.
// The first cut comes after what the peers learned by ARP may have been put right, the second one
// when path 0 is back.
TEST_P(OneSubnet, EitherNicMayGo) {
  const TemporaryFolder folder;
  const std::string plan = with_files_of(folder.path(),
                                         "heal@up, cut rail0 --silent --for 2s@3s, cut rail1 "
                                         "--silent --for 2s@back, slow rail0 8gbit@3s");
  const ToolRun run = run_flat(
      GetParam(), tell_of_paths(folder.path()) + "exec $perf -I 40 --fault '" + plan + "'");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, all_bytes_right), 1U) << run.out;
  EXPECT_EQ(count(run.out, " moved to the shadow path 1"), 2U)
      << "one for each connection: " << run.out;
  for (const int fault : {1, 2}) {
    EXPECT_GE(stall_of(run.out, fault), 0) << run.out;
    EXPECT_LT(stall_of(run.out, fault), 700) << run.out;
  }
}

// A NIC without a way of its own to the peer.
TEST_P(OneSubnet, WhatSharesANicSaysSo) {
  const std::string family = GetParam().ipv6 ? "-6 " : "";
  const std::string subnet = GetParam().ipv6 ? "fd00:18::/64" : "198.18.0.0/16";
  const ToolRun run = run_flat(
      GetParam(), "ip " + family + "route del " + subnet + " dev rail1; $perf --seconds 2");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, all_bytes_right), 1U) << run.out;
  EXPECT_EQ(count(run.out, "leaves by rail0, as the routes say"), 2U)
      << "once on each host: " << run.out;
  EXPECT_GE(count(run.out, " by another NIC, rail0"), 2U) << run.out;
}

INSTANTIATE_TEST_SUITE_P(
    Modes, OneSubnet,
    testing::Values(Mode{"threads", "HA_NCCL_USE_PROGRESS_THREAD=1", false},
                    Mode{"inline", "HA_NCCL_USE_PROGRESS_THREAD=0", false},
                    Mode{"threads_IPv6", "HA_NCCL_USE_PROGRESS_THREAD=1", true},
                    Mode{"inline_IPv6", "HA_NCCL_USE_PROGRESS_THREAD=0", true}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace nccl_ha::tests
