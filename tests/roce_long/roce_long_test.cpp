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

}  // namespace
}  // namespace nccl_ha::tests
