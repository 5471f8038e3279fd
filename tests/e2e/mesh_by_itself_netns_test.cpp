// Jobs on hosts without a switch, with nothing set: their processes find out and relay by
// themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>

#include "tests/support/mesh_lab.h"

namespace nccl_ha::tests {
namespace {

constexpr double first_result_s = 10;

struct LabShape {
  const char* name;
  size_t without_cable;  ///< ordered pairs of hosts
};
void PrintTo(const LabShape& shape, std::ostream* out) { *out << shape.name; }

class MeshByItself : public ::testing::TestWithParam<LabShape> {};

/// From the start of the ranks to the first one's result, of how many.
std::string timed(const std::string& command) {
  return "begin=$(date +%s%N); " + command +
         "; status=$?; echo took $(($(date +%s%N) - begin)) ns; exit $status";
}

size_t relayed_connections(const std::string& out) {
  size_t relayed = 0;
  for (size_t at = 0; (at = out.find("connected to ", at)) != std::string::npos; ++at) {
    const size_t end = out.find('\n', at);
    relayed += out.substr(at, end - at).find(" over relayed over ") != std::string::npos;
  }
  return relayed;
}

/// 0: no host has told it.
double slowest_s(const std::string& out) {
  const std::string told = "] took ";
  double most = 0;
  for (size_t at = 0; (at = out.find(told, at)) != std::string::npos; at += told.size()) {
    most = std::max(most, std::stod(out.substr(at + told.size())) / 1e9);
  }
  return most;
}

TEST_P(MeshByItself, AllReachAllWithNothingSet) {
  MeshLab lab(NHA_TOOL_FILE);
  const ToolRun run =
      lab.run(GetParam().name, "auto", timed("nccl-ha perf alltoall -b 64K -e 64K -w 0 -I 1 -v"));
  expect_right(run);
  EXPECT_GT(slowest_s(run.out), 0) << run.out;
  EXPECT_LE(slowest_s(run.out), first_result_s) << run.out;
  EXPECT_EQ(relayed_connections(run.out), GetParam().without_cable) << run.out;
}

INSTANTIATE_TEST_SUITE_P(Shapes, MeshByItself,
                         ::testing::Values(LabShape{"ring-4", 4}, LabShape{"line-4", 6},
                                           LabShape{"star-4", 12}, LabShape{"mesh-5", 8},
                                           LabShape{"plan-line", 6}, LabShape{"gb10-4", 4}),
                         [](const auto& shape) {
                           std::string name = shape.param.name;
                           for (char& one : name) {
                             one = one == '-' ? '_' : one;
                           }
                           return name;
                         });

/// Each host looks for others at another port than they do: only the streams tell which cable leads
/// to a neighbour, of networks that all look alike.
TEST(MeshOfProcesses, WhereDiscoveryIsNotHeardNeighboursStillFindTheirCable) {
  MeshLab lab(NHA_TOOL_FILE);
  const ToolRun run =
      lab.run("gb10-4", "auto",
              "NCCL_MESH_PORT=$((29600 + RANK)) nccl-ha perf sendrecv -b 64K -e 64K -w 0 "
              "-I 1 -v --timeout 60");
  expect_right(run);
  EXPECT_EQ(count(run.out, "connected to "), 4U) << run.out;
  EXPECT_EQ(relayed_connections(run.out), 0U) << run.out;
  EXPECT_EQ(count(run.out, "did not come up"), 0U) << run.out;
}

/// Two jobs of two processes on each host: the first one on a host speaks for the other three, none
/// of which has a communicator in common with it but the one of its job.
TEST(MeshOfProcesses, TheFirstOneOfAHostSpeaksForAllOfAUser) {
  MeshLab lab(NHA_TOOL_FILE);
  const ToolRun run = lab.run(
      "line-3", "auto",
      "job() { (export RANK=$((2 * $RANK + $1)) WORLD_SIZE=6 MASTER_PORT=$2; "
      "nccl-ha perf alltoall -b 4K -e 4K -w 0 -I 2 --timeout 60); }; "
      "job 0 29511 & one=$!; job 1 29511 & two=$!; job 0 29512 & three=$!; job 1 29512; s=$?; "
      "wait $one && wait $two && wait $three && exit $s");
  expect_right(run, 2);
}

TEST(MeshOfProcesses, WhereThereIsNoWayOneMessageSaysWhatThereIs) {
  MeshLab lab(NHA_TOOL_FILE);
  const ToolRun run = lab.run("line-3", "auto",
                              "[ $RANK = 1 ] && exit 0; export RANK=$((RANK / 2)) WORLD_SIZE=2 "
                              "HA_NCCL_CONNECT_TIMEOUT_MS=4000; "
                              "nccl-ha perf pt2pt -b 4K -e 4K -w 0 -I 1 --timeout 60; [ $? != 0 ]");
  EXPECT_EQ(run.status, 0) << run.out;
  EXPECT_GE(count(run.out, "no address of the peer can be reached: the peer has "), 1U) << run.out;
  for (const char* part : {"198.18.0.1/24 (to-h2)", "198.18.1.3", "hears no host on to-h2",
                           "run nccl-ha relay on all hosts"}) {
    EXPECT_GE(count(run.out, part), 1U) << part << run.out;
  }
}

/// Some hosts have a relay node and some a process that relays by itself.
TEST(MeshOfProcesses, RelayNodesAndProcessesFindEachOther) {
  MeshLab lab(NHA_TOOL_FILE);
  const ToolRun run =
      lab.run("ring-4", "auto",
              "pid=; if [ $RANK != 2 ]; then : > $RANK.log; nccl-ha relay >> $RANK.log & pid=$!; "
              "grep -q 'relay node' <(tail -n +1 -f --pid=$pid $RANK.log) || exit 9; fi; "
              "nccl-ha perf alltoall -b 64K -e 64K -w 0 -I 2 -v --timeout 60; status=$?; "
              "touch $RANK.done; until [ $(ls | grep -c done) = 4 ]; do sleep 0.05; done; "
              "[ -z \"$pid\" ] || { kill $pid; wait $pid; }; exit $status");
  expect_right(run);
  EXPECT_EQ(relayed_connections(run.out), 4U) << run.out;
}

/// A relay node's host has a process of another job, and none of the one that it relays for.
TEST(MeshOfProcesses, ANodeInBetweenNeedNotKnowTheJob) {
  MeshLab lab(NHA_TOOL_FILE);
  const ToolRun run = lab.run_with_nodes(
      "line-3", "line: 3 hosts", 3,
      "job() { (export RANK=$1 WORLD_SIZE=2 MASTER_PORT=$2; "
      "nccl-ha perf pt2pt -b 4K -e 4K -w 0 -I 2 -v --timeout 60); }; "
      "{ [ $RANK = 2 ] || job $RANK 29511; } && { [ $RANK = 1 ] || job $((RANK / 2)) 29512; }");
  expect_right(run, 2);
  EXPECT_GE(relayed_connections(run.out), 1U) << run.out;
}

}  // namespace
}  // namespace nccl_ha::tests
