// The plugin over Soft-RoCE, in emulated machines with Debian's kernel and rdma-core: one guest,
// and two guests with cables between that can be pulled.  nha-guests makes them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/guest_lab.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::tests {
namespace {

constexpr const char* verified = "Out of bounds values : 0 OK";
/// Of nccl-ha perf: a ring, all to all, a pair.  The others are in tests/roce_long.
constexpr const char* few_operations = "all_reduce alltoall pt2pt";
constexpr size_t operations = 3;
std::string operations_over(const std::string& fabric, const std::string& names) {
  return "for op in " + names + "; do HA_NCCL_FABRIC=" + fabric +
         " nccl-ha perf $op --ranks 2 -b 8 -e 256K -f 8 -I 2 -w 1 || exit 1; done; ";
}

// Guests take longer to start than most of what runs in them, so what needs the same ones shares
// them.

TEST(RoceOneGuest, ContractHoldsAndCallersAloneGetOperationsRightOverRcAndUd) {
  const std::string program = beside(NHA_TOOL_FILE, "nha_contract_tests");
  const ToolRun run =
      guests(NHA_TOOL_FILE, {"--guests", "1", "--cpus", "2", "--no-check"},
             program +
                 " --gtest_filter='*verbs_rc:*verbs_ud' || exit 1; "
                 "export HA_NCCL_USE_PROGRESS_THREAD=0; " +
                 operations_over("verbs", few_operations) + operations_over("ud", few_operations));
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  expect_whole_contract(run, program, {"verbs_rc", "verbs_ud"});
  EXPECT_EQ(count(run.out, verified), 2 * operations) << run.out;
  EXPECT_EQ(count(run.out, "device rxe0"), 2 * operations) << run.out;
}

// For longer than a path may be silent, three times HA_NCCL_RTO_MS.  The management network goes as
// well, so that what the two sides have to agree on waits too.
TEST(RoceTwoGuests, ACablePulledForSecondsCostsTimeOnly) {
  const ToolRun run = reduce_in_guests(
      NHA_TOOL_FILE, "flap", "1", {"HA_NCCL_IB_QPS_PER_CONNECTION=2", "HA_NCCL_RTO_MS=500"}, "50",
      {{"cut", "rail0", "--for", "2500ms"}, {"cut", "mgmt", "--for", "2500ms"}});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 1U) << run.out;
  EXPECT_GE(count(run.out, "port error; check cable and switch"), 2U) << run.out;
  EXPECT_GE(count(run.out, " is down: "), 2U) << run.out;
  EXPECT_GE(count(run.out, " is back after "), 2U) << run.out;
}

/// Two ranks in a guest, after `before`: with the default they must work, and with RDMA forced end
/// with an error.
std::string loads(const std::string& before) {
  return "{ " + before +
         "; } || exit 9; nccl-ha perf all_reduce --ranks 2 -b 8 -e 64K -I 1 -w 0 || exit 8; "
         "HA_NCCL_FABRIC=verbs nccl-ha perf all_reduce --ranks 2 -b 8 -e 64K -I 1 2>&1 && exit 7; ";
}

TEST(RoceOneGuest, LoadsWithDevicesThatAreDownAndWithoutADeviceAndWithoutTheLibrary) {
  const ToolRun run = guests(NHA_TOOL_FILE, {"--guests", "1", "--no-check"},
                             loads("ip link set rail0 down && ip link set rail1 down") +
                                 loads("rdma link delete rxe0 && rdma link delete rxe1") +
                                 loads("rm /usr/lib/*/libibverbs.so*") + "exit 0");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 3U) << run.out;
  EXPECT_GE(count(run.out, "device mgmt"), 3U) << run.out;
  for (const char* why : {"rxe0:1 is not usable: its port is down", "this host has no RDMA device",
                          "RDMA is not available: libibverbs.so.1"}) {
    EXPECT_NE(run.out.find(why), std::string::npos) << why << '\n' << run.out;
  }
}

TEST(RoceLab, BringsBackOutputStatusAndSharedFiles) {
  const TemporaryFolder folder;
  const ToolRun run = guests(
      NHA_TOOL_FILE,
      {"--topology", "rails-3x1", "--no-check", "--share", folder.path(), "--env", "WORD=a b'c"},
      // Of a guest that measured its counter itself, time may run at another speed.
      "rate=$(sed 's/.* tsc_early_khz=\\([0-9]*\\)\\([0-9][0-9][0-9]\\) .*/\\1.\\2/' "
      "/proc/cmdline); dmesg | grep -q \"Detected $rate MHz\" && echo rate is told; "
      "echo \"$WORD from $(hostname)\"; echo $RANK >&2; echo $NHA_LAB_HOST >" +
          folder.path() + "/$RANK; touch /etc/nha-must-not-appear; exit $RANK");
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  for (const char* host : {"h1", "h2", "h3"}) {
    const std::string line = std::string("] a b'c from ") + host + "\n";
    EXPECT_NE(run.out.find(line), std::string::npos) << run.out;
  }
#if defined(__x86_64__)
  EXPECT_EQ(count(run.out, "rate is told"), 3U) << run.out;
#endif
  EXPECT_NE(run.err.find("[h3] 2\n"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("h1 0, h2 1, h3 2"), std::string::npos) << run.err;
  std::string word;
  std::ifstream(std::filesystem::path(folder.path()) / "2") >> word;
  EXPECT_EQ(word, "h3");
  EXPECT_FALSE(std::filesystem::exists("/etc/nha-must-not-appear"));
}

}  // namespace
}  // namespace nccl_ha::tests
