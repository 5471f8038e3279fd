// Relay nodes on hosts of a lab: they find each other and tell what they know.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

class RelayNodes : public ::testing::Test {
 protected:
  RelayNodes() {
    std::string made = testing::TempDir() + "nha_relay_XXXXXX";
    folder_ = mkdtemp(made.data());
  }
  ~RelayNodes() override { std::filesystem::remove_all(folder_); }
  /// Each host runs a relay node, asks it until it says `what`, and goes when all have heard that.
  ToolRun run(const std::string& topology, const std::string& what, size_t hosts) {
    const std::string script =
        "nccl-ha relay > $$.log & pid=$!; until grep -q 'relay node' $$.log; do "
        "kill -0 $pid || exit 9; done; "
        "until nccl-ha info --routes > $$.out 2>&1 && grep -q '" +
        what +
        "' $$.out; do "
        "kill -0 $pid || exit 9; done; cat $$.out; "
        "touch $pid.heard; until [ $(ls | grep -c heard) = " +
        std::to_string(hosts) +
        " ]; do "
        "kill -0 $pid || exit 9; done; kill $pid; wait $pid; echo status $?";
    return run_program(NHA_TOOL_FILE, {"lab", "run", topology, "-q", "--timeout", "60", "--", "sh",
                                       "-c", "cd " + folder_ + "; " + script});
  }
  std::string folder_;
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
  const ToolRun run = run_program(
      NHA_TOOL_FILE,
      {"lab", "run", "pair", "-q", "--timeout", "60", "--", "sh", "-c",
       "cd " + folder_ +
           "; nccl-ha relay > $$.log & pid=$!; until grep -q 'relay node' $$.log; do "
           "kill -0 $pid || exit 9; done; nccl-ha relay; echo second $?; kill $pid; wait $pid"});
  EXPECT_EQ(count(run.out, "second 1"), 2U) << run.out << run.err;
  EXPECT_NE((run.out + run.err).find("cannot use UDP port 18740 for discovery"), std::string::npos)
      << run.out << run.err;
}

}  // namespace
}  // namespace nccl_ha::tests
