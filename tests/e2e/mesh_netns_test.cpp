// Hosts without a switch in labs: whoever has no cable to a peer reaches it over others, and what
// breaks is gone round.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/mesh_lab.h"

namespace nccl_ha::tests {
namespace {

class Meshes : public ::testing::Test {
 protected:
  MeshLab lab_{NHA_TOOL_FILE};
};

std::string perf(const std::string& operation, const std::string& more) {
  return "nccl-ha perf " + operation + " -w 0 --timeout 90 " + more;
}

/// From a byte per rank to several messages.
std::string all_operations() {
  std::string all;
  for (const char* one :
       {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv"}) {
    all += (all.empty() ? "" : " && ") + perf(one, "-b 64 -e 1M -f 128 -I 2");
  }
  return all;
}

TEST_F(Meshes, ARingOfFourDoesEveryOperationByItself) {
  const ToolRun run = lab_.run("ring-4", "inline", all_operations());
  expect_right(run, 6);
}

TEST_F(Meshes, ARingOfFourDoesEveryOperationBesideRelayNodes) {
  const ToolRun run = lab_.run_with_nodes("ring-4", "ring: 4", 4,
                                          perf("alltoall", "-b 1M -e 1M -I 4 -v") + " && " +
                                              perf("all_reduce", "-b 8 -e 1M -f 512 -I 2"));
  expect_right(run, 2);
  // Each host has an opposite one, and neighbours that stand by the other way round.
  EXPECT_GE(count(run.out, "connected to 198.19.0."), 4U) << run.out;
  EXPECT_GE(count(run.out, "over relayed over "), 8U) << run.out;
}

TEST_F(Meshes, WithoutRelaysOppositeHostsAreOutOfReach) {
  const ToolRun run =
      lab_.run("ring-4", "off",
               "export HA_NCCL_CONNECT_TIMEOUT_MS=3000; " + perf("alltoall", "-b 1M -e 1M -I 4"));
  EXPECT_NE(run.status, 0) << run.out;
  EXPECT_GE(count(run.out, "no address of the peer can be reached"), 1U) << run.out;
  EXPECT_EQ(count(run.out, all_bytes_right), 0U);
}

TEST_F(Meshes, ACutCableIsGoneRound) {
  const ToolRun run = lab_.run(
      "ring-4", "inline", perf("all_reduce", "-b 1M -e 1M -I 60 --fault 'cut h1-h2 --for 2s@3s'"));
  expect_right(run);
  // h3 and h4 have a path that stands by over it, and hear of it from h1 or h2.
  EXPECT_GE(count(run.out, " of relay "), 1U) << run.out;
  EXPECT_GE(count(run.out, "fault 1: cut h1-h2"), 1U) << run.out;
  EXPECT_GE(count(run.out, "moved to the shadow path 1: relayed over "), 1U) << run.out;
}

/// The number behind `what` in the output; 0 where there is none.
uint64_t number_behind(const ToolRun& run, const std::string& what) {
  const size_t at = run.out.find(what);
  return at == std::string::npos ? 0
                                 : std::strtoull(run.out.c_str() + at + what.size(), nullptr, 10);
}

/// What hosts said of the time behind `what`.
std::vector<double> seconds_behind(const std::string& out, const std::string& what) {
  std::vector<double> all;
  for (size_t at = 0; (at = out.find(what, at)) != std::string::npos; ++at) {
    all.push_back(std::strtod(out.c_str() + at + what.size(), nullptr));
  }
  return all;
}

/// How many a relay node has passed on.
const std::string frames =
    "frames() { nccl-ha relay status --json | sed -n '/\"frames\"/{s/[^0-9]//g;p;q}'; }; ";

TEST_F(Meshes, AKilledRelayIsGoneRound) {
  const ToolRun run = lab_.run_with_nodes(
      "ring-4", "ring: 4", 4,
      // h1 and h3 reach each other over the nodes of h2, which dies in the midst of it, and of h4.
      "(" + frames +
          "if [ $RANK = 1 ]; then { until [ $(frames) -gt 40 ]; do kill -0 $pid || exit; done; "
          "echo carried $(frames); kill -KILL $pid && : > killed; } & "
          "elif [ $RANK = 3 ]; then { until [ -e killed ]; do sleep 0.01; done; "
          "echo other one then $(frames); } & fi; watcher=$!; " +
          perf("alltoall", "-b 1M -e 1M -I 100") +
          "; status=$?; if [ $RANK = 1 ] || [ $RANK = 3 ]; then wait $watcher; fi; "
          "[ $RANK != 3 ] || echo other one at the end $(frames); exit $status)");
  expect_right(run);
  EXPECT_GT(number_behind(run, "] carried "), 40U) << run.out;
  // Load is on both ways round, so that what is left goes on where it is.
  EXPECT_GE(count(run.out, " is down: the neighbour ended the session"), 1U) << run.out;
  const uint64_t then = number_behind(run, "] other one then ");
  EXPECT_GT(number_behind(run, "] other one at the end "), then) << run.out;
  EXPECT_GT(then, 0U) << "nobody looked: " << run.out;
}

TEST_F(Meshes, ALineThatIsCutEndsOnBothSides) {
  const ToolRun run = lab_.run_with_nodes(
      "line-3", "line: 3", 3,
      "export HA_NCCL_RETRY_BUDGET_MS=3000; " + frames +
          "[ $RANK != 1 ] || { until [ $(frames) -gt 40 ]; do kill -0 $pid || exit; done; "
          "echo cut $EPOCHREALTIME; nccl-ha lab cut h2-h3 > /dev/null; "
          "echo is cut $EPOCHREALTIME; } & cutter=$!; " +
          perf("alltoall", "-b 4M -e 4M -I 20000") +
          "; status=$?; echo over $EPOCHREALTIME; wait $cutter; (exit $status)");
  EXPECT_NE(run.status, 0) << run.out;
  EXPECT_EQ(count(run.out, all_bytes_right), 0U) << run.out;
  EXPECT_FALSE(run.timed_out);
  EXPECT_NE(run.status, 124) << "no error came, the lab's limit did: " << run.out;
  // Somebody on either side of the cut says why.
  EXPECT_GE(count(run.out, "[h3] nccl-ha perf: rank 2 (ha)"), 1U) << run.out;
  EXPECT_GE(count(run.out, "[h1] nccl-ha perf: rank 0 (ha)"), 1U) << run.out;
  // The budget is counted from where a path was given up, which a second more may pass before.
  const std::vector<double> cut = seconds_behind(run.out, "] cut ");
  const std::vector<double> is_cut = seconds_behind(run.out, "] is cut ");
  const std::vector<double> ends = seconds_behind(run.out, "] over ");
  ASSERT_EQ(cut.size(), 1U) << run.out;
  ASSERT_EQ(is_cut.size(), 1U) << run.out;
  ASSERT_EQ(ends.size(), 3U) << run.out;
  for (const double end : ends) {
    EXPECT_GT(end, cut[0] + 2) << run.out;
    EXPECT_LT(end, is_cut[0] + 5) << run.out;
  }
}

}  // namespace
}  // namespace nccl_ha::tests
