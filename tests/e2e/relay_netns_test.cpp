// Relay nodes on hosts of a lab: they find each other and tell what they know.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

class RelayNodes : public ::testing::Test {
 protected:
  /// Each host runs a relay node, asks it until it says `what`, and goes when all have heard that.
  ToolRun run(const std::string& topology, const std::string& what, size_t hosts) {
    const std::string script =
        ": > $$.log; nccl-ha relay >> $$.log & pid=$!; "
        "grep -q 'relay node' <(tail -n +1 -f --pid=$pid $$.log) || exit 9; "
        "until nccl-ha info --routes > $$.out 2>&1 && grep -q '" +
        what +
        "' $$.out; do "
        "kill -0 $pid || exit 9; done; cat $$.out; "
        "touch $pid.heard; until [ $(ls | grep -c heard) = " +
        std::to_string(hosts) +
        " ]; do "
        "kill -0 $pid || exit 9; done; kill $pid; wait $pid; echo status $?";
    return run_program(NHA_TOOL_FILE, {"lab", "run", topology, "-q", "--timeout", "60", "--",
                                       "bash", "-c", "cd " + folder_.path() + "; " + script});
  }
  TemporaryFolder folder_;
};

TEST_F(RelayNodes, FindTheRingAndBothWaysRoundIt) {
  const ToolRun run = this->run("ring-4", "ring: 4 hosts, the relay node of this host", 4);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "] status 0"), 4U) << run.out << run.err;
  // From each host: two neighbours with a spare way round, and the opposite one both ways.
  EXPECT_EQ(count(run.out, "spare"), 8U) << run.out;
  EXPECT_EQ(count(run.out, " 50% "), 8U) << run.out;
}

TEST_F(RelayNodes, OneOfAHostIsEnough) {
  const ToolRun run =
      run_program(NHA_TOOL_FILE,
                  {"lab", "run", "pair", "-q", "--timeout", "60", "--", "sh", "-c",
                   "cd " + folder_.path() +
                       "; nccl-ha relay > $$.log & pid=$!; until grep -q 'relay node' $$.log; do "
                       "kill -0 $pid || exit 9; done; nccl-ha relay 2>&1 | grep -q \"a relay node "
                       "(pid $pid) runs on "
                       "this host: cannot use UDP port 18740 for discovery\" && echo named; "
                       "nccl-ha relay; echo second $?; kill $pid; wait $pid"});
  EXPECT_EQ(count(run.out, "second 2"), 2U) << run.out << run.err;
  EXPECT_EQ(count(run.out, "] named"), 2U) << run.out << run.err;
}

TEST_F(RelayNodes, BeginsWhereSomebodyHasItsPortsForAMoment) {
  // On h1 `info --routes` has the UDP port, on h2 another node the page's, which is killed.
  const ToolRun run = run_program(
      NHA_TOOL_FILE,
      {"lab", "run", "pair", "-q", "--timeout", "60", "--", "bash", "-c",
       "cd " + folder_.path() +
           "; taken() { until grep -q \":$(printf %04X $1) \" /proc/net/udp; do "
           "kill -0 $other || exit 9; done; }; "
           "said() { until grep -q 'relay node' $1; do kill -0 $2 || exit 8; done; }; "
           "if [ $RANK = 0 ]; then nccl-ha info --routes > 0.info & other=$!; taken 18740; "
           "nccl-ha relay > 0.log & pid=$!; said 0.log $pid; wait $other; "
           "else NCCL_MESH_PORT=18741 nccl-ha relay > 1.other & other=$!; said 1.other $other; "
           "nccl-ha relay > 1.log & pid=$!; taken 18740; "
           "kill -KILL $other; said 1.log $pid; fi; kill $pid; wait $pid; echo status $?"});
  EXPECT_EQ(count(run.out, "] status 0"), 2U) << run.out << run.err;
}

TEST_F(RelayNodes, WithoutTheKeyNobodyJoinsAndADrainedNodeEnds) {
  const std::string first = folder_.path() + "/first";
  const std::string other = folder_.path() + "/other";
  for (const std::string& file : {first, other}) {
    ASSERT_EQ(run_program(NHA_TOOL_FILE, {"relay", "make-key", file}).status, 0);
  }
  EXPECT_EQ(run_program(NHA_TOOL_FILE, {"relay", "make-key", first}).status, 2) << "never anew";
  // Of three hosts in a line the last one has another key.  Each goes when all have said what they
  // see.
  const std::string script =
      "cd " + folder_.path() +
      "; export NCCL_MESH_KEY_FILE=first; [ $RANK = 2 ] && export NCCL_MESH_KEY_FILE=other; "
      "nccl-ha relay > $RANK.log & pid=$!; alive() { kill -0 $pid || exit 9; }; "
      "until grep -q 'with the cluster' $RANK.log; do alive; done; "
      "want=2; [ $RANK = 2 ] && want=1; "
      "[ $RANK = 0 ] || until nccl-ha relay status --json | tee $RANK.json | "
      "grep -q '\"forged\": [1-9]'; do alive; done; "
      "until nccl-ha relay status --json | tee $RANK.json | grep -q \"\\\"hosts\\\": $want\"; do "
      "alive; done; touch $RANK.heard; "
      "until [ $(ls | grep -c heard) = 3 ]; do alive; done; "
      "nccl-ha relay status | head -1; kill $pid; wait $pid; echo status $?";
  const ToolRun run = run_program(
      NHA_TOOL_FILE, {"lab", "run", "line-3", "-q", "--timeout", "60", "--", "sh", "-c", script});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "] status 0"), 3U) << run.out << run.err;
  EXPECT_EQ(count(run.out, "] relay node "), 3U) << run.out << run.err;
}

TEST_F(RelayNodes, AKeyFileThatOthersMayReadIsRefused) {
  const std::string file = folder_.path() + "/keys";
  ASSERT_EQ(run_program(NHA_TOOL_FILE, {"relay", "make-key", file}).status, 0);
  std::filesystem::permissions(file, std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  const ToolRun run =
      run_program("/usr/bin/env", {"NCCL_MESH_KEY_FILE=" + file, NHA_TOOL_FILE, "relay"});
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("chmod 600"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace nccl_ha::tests
