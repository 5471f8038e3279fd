// What takes too long for every change: tests/long.sh runs it (label roce_long).
#include <gtest/gtest.h>

#include "tests/support/guest_lab.h"

namespace nccl_ha::tests {
namespace {

TEST(RoceTwoGuests, ContractHoldsOverRcAndUd) {
  // h2 has the second side; h1 runs the suite and ends it.
  const std::string tests = beside(NHA_TOOL_FILE, "nha_contract_tests");
  const std::string peer = beside(NHA_TOOL_FILE, "nha_contract_peer");
  const ToolRun run = guests(
      NHA_TOOL_FILE, {"--rails", "1"},
      "if [ $RANK = 1 ]; then exec " + peer + " 7000; fi; " + "NHA_CONTRACT_PEER=198.19.0.2:7000 " +
          tests + " --gtest_filter='*verbs*'; s=$?; " + peer + " quit 198.19.0.2 7000; exit $s");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  for (const char* provider : {"/verbs_rc (", "/verbs_ud (", "/verbs_ud_lossy ("}) {
    EXPECT_GE(count(run.out, provider), 23U) << provider << " did not run";
  }
  EXPECT_EQ(count(run.out, "[  FAILED  ]"), 0U) << run.out;
}

TEST(RoceOneGuest, ContractHoldsOverLossyUd) {
  const ToolRun run = guests(
      NHA_TOOL_FILE, {"--guests", "1", "--cpus", "2", "--no-check"},
      "exec " + beside(NHA_TOOL_FILE, "nha_contract_tests") + " --gtest_filter='*verbs_ud_lossy'");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_GE(count(run.out, "/verbs_ud_lossy ("), 23U) << run.out;
  EXPECT_EQ(count(run.out, "[  FAILED  ]"), 0U) << run.out;
}

constexpr const char* verified = "Out of bounds values : 0 OK";

/// Faults that a job survives (docs/operations.md has the table).
struct Survivable {
  const char* name;
  const char* rails;
  std::vector<std::string> settings;
  std::vector<std::vector<std::string>> cuts;
  const char* trace;  ///< what the fault left in the output
};

class RoceFaults : public testing::TestWithParam<Survivable> {};

TEST_P(RoceFaults, CostTimeOnly) {
  const Survivable& fault = GetParam();
  const ToolRun run =
      reduce_in_guests(NHA_TOOL_FILE, fault.name, fault.rails, fault.settings, "80", fault.cuts);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 1U) << run.out;
  EXPECT_GE(count(run.out, fault.trace), 1U) << run.out;
}

INSTANTIATE_TEST_SUITE_P(
    All, RoceFaults,
    testing::Values(
        Survivable{"flap1", "1", {}, {{"cut", "rail0", "--for", "200ms"}}, "port error"},
        Survivable{"flap2", "2", {}, {{"cut", "rail0", "--for", "200ms"}}, "port error"},
        Survivable{"there",
                   "2",
                   {},
                   {{"cut", "rail0", "--silent", "--from", "h1"}},
                   " moved to the shadow"},
        Survivable{"back",
                   "2",
                   {},
                   {{"cut", "rail0", "--silent", "--from", "h2"}},
                   " moved to the shadow"},
        Survivable{"both", "2", {}, {{"cut", "rail0", "--silent"}}, " moved to the shadow"},
        Survivable{"long1",
                   "1",
                   {},
                   {{"cut", "rail0", "--for", "10s"}, {"cut", "mgmt", "--for", "10s"}},
                   " is back after "},
        Survivable{"long2",
                   "2",
                   {"HA_NCCL_ENABLE_FAILBACK=1", "HA_NCCL_FAILBACK_MS=500"},
                   {{"cut", "rail0", "--for", "3s"}},
                   " moved back to path 0"},
        Survivable{"ud", "2", {"HA_NCCL_FABRIC=ud"}, {{"cut", "rail0"}}, " moved to the shadow"},
        Survivable{"udp", "1", {}, {{"cut", "rail0"}}, " moved to the shadow path 1: datagram "},
        Survivable{"udp_and_back",
                   "1",
                   {"HA_NCCL_FAILBACK_MS=500"},
                   {{"cut", "rail0", "--silent", "--for", "3s"}},
                   " moved back to path 0"},
        Survivable{"udp_after_two",
                   "2",
                   {},
                   {{"cut", "rail0"}, {"cut", "rail1"}},
                   " ms: datagram 198.19.0."}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(RoceTwoGuests, ASilentCutBeyondTheBudgetIsAnErrorInTime) {
  const auto begin = std::chrono::steady_clock::now();
  const ToolRun run = reduce_in_guests(
      NHA_TOOL_FILE, "silent", "1", {"HA_NCCL_RETRY_BUDGET_MS=2000", "HA_NCCL_SHADOW_DATAGRAMS=0"},
      "1000000", {{"cut", "rail0", "--silent"}});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(90));
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  EXPECT_NE(run.out.find("the peer acknowledges nothing any more"), std::string::npos) << run.out;
  EXPECT_GE(count(run.out, "ncclRemoteError"), 1U) << run.out;
}

}  // namespace
}  // namespace nccl_ha::tests
