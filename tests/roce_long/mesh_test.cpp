// A line of three guests with RDMA devices on its two cables: neighbours use RDMA, and the ends
// reach each other over the guest in the middle, by queue pairs as well.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/guest_lab.h"

namespace nccl_ha::tests {
namespace {

constexpr const char* all_bytes_right = "Out of bounds values : 0 OK";

TEST(RoceLine, NeighboursUseRdmaAndTheEndsAreRelayed) {
  const ToolRun run =
      guests(NHA_TOOL_FILE, {"--topology", "line-3", "--env", "NCCL_MESH_RELAY=inline"},
             "exec 2>&1; for op in alltoall all_reduce; do nccl-ha perf $op -b 8 -e 256K -f 32 "
             "-I 2 -w 0 -v --timeout 100 || exit 1; done");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, all_bytes_right), 2U) << run.out;
  // In alltoall each cable has a connection each way, and so have the ends.
  EXPECT_GE(count(run.out, " over RoCE rxe"), 8U) << run.out;
  EXPECT_GE(count(run.out, " over relayed over "), 4U) << run.out;
  EXPECT_GE(count(run.out, ", first hop RoCE rxe"), 4U) << run.out;
  EXPECT_EQ(count(run.out, "did not come up"), 0U) << run.out;
  EXPECT_EQ(count(run.out, "%mgmt"), 0U) << "that is no cable: " << run.out;
}

TEST(RoceLine, HopsAreWhatBothNeighboursHave) {
  // The last guest's processes use datagrams over UDP only.
  const ToolRun run =
      guests(NHA_TOOL_FILE, {"--topology", "line-3", "--env", "NCCL_MESH_RELAY=inline"},
             "exec 2>&1; [ $RANK != 2 ] || export HA_NCCL_FABRIC=datagram; "
             "nccl-ha perf alltoall -b 8 -e 256K -f 32 -I 2 -w 0 -v --timeout 100");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, all_bytes_right), 1U) << run.out;
  EXPECT_GE(count(run.out, " over relayed over "), 2U) << run.out;
  // From the first guest, and from the last one.
  EXPECT_GE(count(run.out, ", first hop RoCE rxe"), 1U) << run.out;
  EXPECT_GE(count(run.out, ", first hop datagram "), 1U) << run.out;
}

/// The first and the last one's job relays for nobody: what leads from one to the other is the
/// middle one's node.
constexpr const char* job_of_the_ends = R"sh(exec 2>&1
if [ $RANK = 1 ]; then
  frames() { nccl-ha relay status --json | sed -n '/"frames"/{s/[^0-9]//g;p;q}'; }
  nccl-ha relay > /tmp/node.log & node=$!
  grep -q 'relay node' <(tail -n +1 -f --pid=$node /tmp/node.log) || exit 9
  until [ $(frames) -gt 20 ]; do kill -0 $node || exit 9; done
  echo carried $(frames)
  nccl-ha relay status
  kill -KILL $node
else
  RANK=$((RANK / 2)) WORLD_SIZE=2 NCCL_MESH_RELAY=inline HA_NCCL_RETRY_BUDGET_MS=3000 \
    nccl-ha perf pt2pt -b 256K -e 256K -w 0 --seconds 100 -v --timeout 150
  echo ended $?
fi
)sh";

TEST(RoceLine, AKilledRelayIsAnErrorAtBothEnds) {
  const ToolRun run = guests(NHA_TOOL_FILE, {"--topology", "line-3"}, job_of_the_ends);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "[h2] carried "), 1U) << run.out;
  EXPECT_GE(count(run.out, "[h2]     by RoCE rxe"), 2U) << run.out;
  EXPECT_GE(count(run.out, " over relayed over "), 2U) << run.out;
  EXPECT_EQ(count(run.out, all_bytes_right), 0U) << run.out;
  for (const char* end : {"h1", "h3"}) {
    EXPECT_EQ(count(run.out, std::string("[") + end + "] ended "), 1U) << run.out;
    EXPECT_EQ(count(run.out, std::string("[") + end + "] ended 0"), 0U) << run.out;
  }
  EXPECT_GE(count(run.out, "[h1] nccl-ha perf: rank 0 (ha): "), 1U) << run.out;
  EXPECT_GE(count(run.out, "[h3] nccl-ha perf: rank 1 (ha): "), 1U) << run.out;
}

}  // namespace
}  // namespace nccl_ha::tests
