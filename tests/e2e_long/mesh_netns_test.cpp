// All operations among hosts without a switch, in more shapes and with more hosts than the short
// suite has time for.
#include <gtest/gtest.h>

#include <chrono>
#include <ostream>
#include <string>

#include "tests/support/mesh_lab.h"

namespace nccl_ha::tests {
namespace {

constexpr size_t operations = 7;

struct Shape {
  const char* name;
  size_t hosts;
  /// Ordered pairs of hosts without a cable between them: so many connections must be relayed.
  size_t without_cable;
};

std::string perf(const std::string& operation, const std::string& more) {
  return "nccl-ha perf " + operation + " -w 0 --timeout 220 " + more;
}

/// From some bytes for each rank to several messages; the last one says how it was connected.
std::string all_operations() {
  std::string all;
  for (const char* one :
       {"pt2pt", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv"}) {
    all += perf(one, "-b 64 -e 1M -f 128 -I 2") + " && ";
  }
  return all + perf("alltoall", "-b 64 -e 1M -f 128 -I 2 -v");
}

void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

/// Of jobs whose processes find each other and relay themselves.
class MeshOf : public ::testing::TestWithParam<Shape> {};

TEST_P(MeshOf, EveryOperationIsRightAmongAllRanks) {
  MeshLab lab(NHA_TOOL_FILE, std::chrono::seconds(225));
  const ToolRun run = lab.run(GetParam().name, "inline", all_operations());
  expect_right(run, operations);
  // Hosts with a cable have that one, with a way over others behind it.
  size_t relayed = 0;
  for (size_t at = 0; (at = run.out.find("connected to ", at)) != std::string::npos; ++at) {
    const size_t end = run.out.find('\n', at);
    relayed += run.out.substr(at, end - at).find(" over relayed over ") != std::string::npos;
  }
  EXPECT_EQ(relayed, GetParam().without_cable) << run.out;
}

INSTANTIATE_TEST_SUITE_P(Shapes, MeshOf,
                         ::testing::Values(Shape{"ring-4", 4, 4}, Shape{"line-4", 4, 6},
                                           Shape{"ring-8", 8, 40}, Shape{"star-5", 6, 20},
                                           Shape{"mesh-8-1", 8, 34}, Shape{"mesh-8-7", 8, 34},
                                           Shape{"plan-ring", 4, 4}, Shape{"plan-line", 4, 6}),
                         [](const auto& shape) {
                           std::string name = shape.param.name;
                           for (char& one : name) {
                             one = one == '-' ? '_' : one;
                           }
                           return name;
                         });

/// h1 and h3 reach each other over h2, where a job relays itself and ends, and over the node of h4.
const std::string job_on_h2_and_another =
    "if [ $RANK = 1 ]; then "
    "env -u RANK -u WORLD_SIZE -u LOCAL_RANK NCCL_MESH_RELAY=inline "
    "nccl-ha perf pt2pt --ranks 2 -b 64K -e 64K --seconds 8 -w 0 -v; status=$?; "
    "else nccl-ha relay > $RANK.log & pid=$!; "
    "grep -q 'relay node' <(tail -n +1 -f --pid=$pid $RANK.log) || exit 9; "
    "until nccl-ha info --routes 2>/dev/null | grep -q 'ring: 4'; do "
    "kill -0 $pid || exit 9; sleep 0.05; done; status=0; "
    "[ $RANK = 3 ] || { RANK=$((RANK / 2)) WORLD_SIZE=2 "
    "nccl-ha perf pt2pt -b 1M -e 1M --seconds 14 -w 0 -v; status=$?; }; fi; "
    "touch $RANK.done; until [ $(ls | grep -c done) = 4 ]; do sleep 0.05; done; "
    "[ $RANK = 1 ] || kill $pid; exit $status";

TEST(MeshOfJobs, AProcessThatEndsSendsPathsOfOthersAnotherWay) {
  MeshLab lab(NHA_TOOL_FILE);
  const ToolRun run = lab.run("ring-4", "auto", job_on_h2_and_another);
  expect_right(run, 2);
  const size_t ends = run.out.find("the relay node ends: ");
  ASSERT_NE(ends, std::string::npos) << "no path of others led through it: " << run.out;
  EXPECT_EQ(run.out.rfind("[h2]", ends), run.out.rfind('\n', ends) + 1) << run.out;
  EXPECT_GE(count(run.out, " is down: the relay node ends"), 1U) << run.out;
  EXPECT_EQ(count(run.out, " is down: the neighbour ended the session"), 0U) << run.out;
  EXPECT_GE(count(run.out, ", path 1 goes on"), 1U) << run.out;
}

/// The node of h2 dies; a process of the job takes its place, until a node begins again.
const std::string node_that_comes_back =
    "( frames() { nccl-ha relay status --json | sed -n '/\"frames\"/{s/[^0-9]//g;p;q}'; }; "
    "said() { until grep -q \"$1\" $2; do kill -0 $job || exit 7; sleep 0.05; done; }; "
    "NCCL_MESH_DEAD_MS=1000 nccl-ha perf alltoall -b 1M -e 1M -w 0 -v --seconds 20 --timeout 90 "
    "> $RANK.job 2>&1 & job=$!; "
    "if [ $RANK = 1 ]; then until [ $(frames) -gt 40 ]; do kill -0 $job || exit 7; done; "
    "kill -KILL $pid; said 'relays from now on' $RANK.job; "
    ": > again.log; nccl-ha relay >> again.log & again=$!; said 'relay node' again.log; "
    "said 'relays no more' $RANK.job; "
    "until [ $(frames) -gt 40 ]; do kill -0 $job || exit 7; done; echo carried again $(frames); "
    "fi; "
    "wait $job; status=$?; cat $RANK.job; "
    "[ $RANK != 1 ] || { kill $again; wait $again; }; exit $status )";

TEST(MeshOfJobs, AProcessThatTookANodesPlaceGivesItBack) {
  MeshLab lab(NHA_TOOL_FILE);
  const ToolRun run = lab.run_with_nodes("ring-4", "ring: 4", 4, node_that_comes_back);
  expect_right(run);
  EXPECT_EQ(count(run.out, "the relay node of this host is gone"), 1U) << run.out;
  EXPECT_EQ(count(run.out, "[h2] carried again"), 1U) << run.out;
}

/// A node that begins while the job runs takes the place of the process that relayed, and the job
/// goes on; so it does when the node is killed.
TEST(MeshOfJobs, ANodeTakesThePlaceOfAProcessAndGivesItBack) {
  MeshLab lab(NHA_TOOL_FILE);
  const ToolRun run = lab.run(
      "ring-4", "auto",
      "said() { until grep -q \"$1\" $2; do kill -0 $job || exit 7; sleep 0.05; done; }; "
      "export NCCL_MESH_DEAD_MS=1000; "
      "nccl-ha perf alltoall -b 256K -e 256K -w 0 -v --seconds 12 --timeout 90 > $RANK.job 2>&1 & "
      "job=$!; if [ $RANK = 1 ]; then said 'connected to' $RANK.job; "
      "nccl-ha relay > node.log & pid=$!; said 'relay node' node.log; "
      "said 'relays no more' $RANK.job; "
      "frames() { nccl-ha relay status --json | sed -n '/\"frames\"/{s/[^0-9]//g;p;q}'; }; "
      "until [ $(frames) -gt 40 ]; do kill -0 $job || exit 8; done; echo the node carried; "
      "kill -KILL $pid; fi; wait $job; status=$?; cat $RANK.job; exit $status");
  expect_right(run);
  EXPECT_EQ(count(run.out, "[h2] the node carried"), 1U) << run.out;
}

}  // namespace
}  // namespace nccl_ha::tests
