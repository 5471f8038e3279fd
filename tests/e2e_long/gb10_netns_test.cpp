// Boxes in a ring as DGX Spark's are cabled: each cable is two devices, and none has an IP address.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

#include "tests/support/mesh_lab.h"

namespace nccl_ha::tests {
namespace {

class Gb10 : public ::testing::Test {
 protected:
  MeshLab lab_{NHA_TOOL_FILE};
};

/// The number behind `key`; 0: there is none.
uint64_t number_behind(const std::string& text, const std::string& key) {
  const size_t at = text.find(key);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + key.size(), nullptr, 10);
}

/// What h1 sends to h2 by either half.
const std::string count_halves =
    "[ $RANK != 0 ] || for half in enp1s0f1np1 enP2p1s0f1np1; do "
    "echo sent $half=$(cat /sys/class/net/$half/statistics/tx_bytes); done";

TEST_F(Gb10, BothHalvesOfACableCarryOneConnection) {
  const ToolRun run =
      lab_.run("gb10-4", "inline",
               "nccl-ha perf pt2pt -b 4M -e 4M -w 0 -I 50 -v --timeout 90 && " + count_halves);
  expect_right(run);
  const uint64_t one = number_behind(run.out, "sent enp1s0f1np1=");
  const uint64_t other = number_behind(run.out, "sent enP2p1s0f1np1=");
  EXPECT_GE(one + other, uint64_t{50} * 4 * 1024 * 1024) << run.out;
  EXPECT_GE(std::min(one, other) * 4, one + other) << one << ", " << other << '\n' << run.out;
}

TEST_F(Gb10, OppositeBoxesReachEachOtherAndAllOperationsAreRight) {
  std::string all;
  for (const char* one : {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv"}) {
    all += "nccl-ha perf " + std::string(one) + " -b 64 -e 1M -f 128 -w 0 -I 2 --timeout 90 && ";
  }
  const ToolRun run =
      lab_.run("gb10-4", "inline",
               all + "nccl-ha perf alltoall -b 64 -e 1M -f 128 -w 0 -I 2 -v --timeout 90");
  expect_right(run, 6);
  EXPECT_GE(count(run.out, " over relayed over "), 4U) << run.out;
}

TEST_F(Gb10, ALostHalfLeavesTheOtherOne) {
  const ToolRun run = lab_.run("gb10-4", "inline",
                               "nccl-ha perf all_reduce -b 1M -e 1M -w 0 -I 60 -v --timeout 90 "
                               "--fault 'cut h1-h2.0 --for 2s@300ms'");
  expect_right(run);
  EXPECT_GE(count(run.out, "fault 1: cut h1-h2.0"), 1U) << run.out;
  EXPECT_EQ(count(run.out, "moved to the shadow path"), 0U)
      << "another half carries, no relay has to: " << run.out;
}

TEST_F(Gb10, MistakesInTheCablingAreTold) {
  const ToolRun run = lab_.run_with_nodes(
      "gb10-4", "ring: 4", 4,
      "[ $RANK != 0 ] || { ip link set enP2p1s0f0np0 down; ip link set enp1s0f1np1 mtu 1500; "
      "until nccl-ha info --routes | grep -q 'is down'; do sleep 0.1; done; "
      "nccl-ha info --routes; env -i PATH=$PATH nccl-ha check; true; }");
  EXPECT_EQ(run.status, 0) << run.out;
  EXPECT_EQ(count(run.out, "warning: enP2p1s0f0np0, one of 2 ways to port p0, is down"), 2U)
      << run.out;
  EXPECT_EQ(count(run.out, "warning: enp1s0f1np1 has an MTU of 1500"), 2U) << run.out;
  EXPECT_EQ(count(run.out, "hears no neighbour"), 0U) << run.out;
}

}  // namespace
}  // namespace nccl_ha::tests
