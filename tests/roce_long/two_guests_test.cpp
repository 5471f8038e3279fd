// The plugin over Soft-RoCE, in emulated machines with Debian's kernel and rdma-core: one guest,
// and two guests with cables between that can be pulled.  `nccl-ha lab roce` makes them.
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

TEST(RoceTwoGuests, OperationsAreRightOverRcAndUdAndAForcedFabricThatThePeerLacksIsAnError) {
  const ToolRun run =
      guests(NHA_TOOL_FILE, {},
             operations_over("verbs", few_operations) + operations_over("ud", few_operations) +
                 "if [ $RANK = 1 ]; then export HA_NCCL_FABRIC=verbs; else export "
                 "HA_NCCL_FABRIC=datagram; fi; "
                 "nccl-ha perf pt2pt -b 8 -e 8 -I 1 2>&1 && exit 9; exit 0");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 2 * operations) << run.out;
  EXPECT_GE(count(run.out, "2 ranks on 2 hosts"), 2 * operations) << run.out;
  EXPECT_NE(run.err.find("every link was tried"), std::string::npos) << run.err;
  EXPECT_GE(count(run.out, "the peer wants datagrams over UDP, but rxe0 on h2 uses RDMA"), 2U)
      << run.out;
}

// For longer than a path may be silent, three times HA_NCCL_RTO_MS.  The management network goes as
// well, so that what the two sides have to agree on waits too.
TEST(RoceTwoGuests, ARailThatIsGoneForGoodMovesTrafficToTheOtherDevice) {
  const ToolRun run = reduce_in_guests(NHA_TOOL_FILE, "gone", "2",
                                       {"HA_NCCL_IB_FLUSH=1", "HA_NCCL_SOFT_TIMEOUT_MS=5000",
                                        "HA_NCCL_HEARTBEAT_MS=2000", "HA_NCCL_RTO_MS=5000"},
                                       "40", {{"cut", "rail0"}});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 1U) << run.out;
  EXPECT_GE(count(run.out, "port error; check cable and switch"), 2U) << run.out;
  EXPECT_GE(count(run.out, " moved to the shadow path 1: RoCE rxe1"), 2U) << run.out;
  EXPECT_EQ(count(run.out, " is back after "), 0U) << run.out;
}

/// Two ranks in a guest, after `before`: with the default they must work, and with RDMA forced end
/// with an error.
std::string loads(const std::string& before) {
  return "{ " + before +
         "; } || exit 9; nccl-ha perf all_reduce --ranks 2 -b 8 -e 64K -I 1 -w 0 || exit 8; "
         "HA_NCCL_FABRIC=verbs nccl-ha perf all_reduce --ranks 2 -b 8 -e 64K -I 1 2>&1 && exit 7; ";
}

}  // namespace
}  // namespace nccl_ha::tests
