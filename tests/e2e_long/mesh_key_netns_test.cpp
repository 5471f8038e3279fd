// A mesh with a cluster key, whole: jobs run that have it or beside nodes that have it, and one
// with another key is rejected.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

#include "tests/support/mesh_lab.h"

namespace nccl_ha::tests {
namespace {

class KeyedMesh : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string file = folder_.path() + "/keys";
    ASSERT_EQ(run_program(NHA_TOOL_FILE, {"relay", "make-key", file}).status, 0);
    setenv("NCCL_MESH_KEY_FILE", file.c_str(), 1);  // labs inherit it
  }
  void TearDown() override { unsetenv("NCCL_MESH_KEY_FILE"); }
  /// All to all in a line of three, whose ends reach each other over the relay node in the middle;
  /// what that one has counted comes last.
  ToolRun run(const std::string& before) {
    return lab_.run_with_nodes(
        "line-3", "line: 3", 3,
        before +
            "export HA_NCCL_CONNECT_TIMEOUT_MS=4000; "
            "nccl-ha perf alltoall -w 0 --timeout 60 -b 1M -e 1M -I 4 -v; perf=$?; "
            "[ $RANK != 1 ] || nccl-ha relay status --json | grep -E 'opened|unauth'; "
            "(exit $perf)");
  }
  TemporaryFolder folder_;
  MeshLab lab_{NHA_TOOL_FILE};
};

TEST_F(KeyedMesh, WithTheKeyAJobRuns) {
  const ToolRun run = this->run("");
  expect_right(run);
  EXPECT_GE(count(run.out, "over relayed over "), 2U) << run.out;
  EXPECT_EQ(count(run.out, "\"unauthenticated\": 0"), 1U) << run.out;
  EXPECT_EQ(count(run.out, "\"opened\": 0"), 0U) << run.out;
}

TEST_F(KeyedMesh, ProcessesWithoutTheKeyHaveTicketsOfTheirNodes) {
  const ToolRun run = this->run("[ $RANK = 0 ] || unset NCCL_MESH_KEY_FILE; ");
  expect_right(run);
  EXPECT_GE(count(run.out, "over relayed over "), 2U) << run.out;
  EXPECT_EQ(count(run.out, "\"unauthenticated\": 0"), 1U) << run.out;
  EXPECT_EQ(count(run.out, "\"opened\": 0"), 0U) << run.out;
}

TEST_F(KeyedMesh, AProcessWithAnotherKeyIsRejectedAndCounted) {
  const std::string other = folder_.path() + "/other";
  ASSERT_EQ(run_program(NHA_TOOL_FILE, {"relay", "make-key", other}).status, 0);
  const ToolRun run = this->run("[ $RANK != 2 ] || export NCCL_MESH_KEY_FILE=" + other + "; ");
  EXPECT_NE(run.status, 0) << run.out;
  EXPECT_FALSE(run.timed_out);
  EXPECT_EQ(count(run.out, all_bytes_right), 0U) << run.out;
  EXPECT_GE(count(run.out, "a neighbour whose cluster key or ticket is not known here"), 1U)
      << run.out;
  EXPECT_EQ(count(run.out, "\"unauthenticated\": "), 1U) << run.out;
  EXPECT_EQ(count(run.out, "\"unauthenticated\": 0"), 0U) << "nothing was counted: " << run.out;
}

}  // namespace
}  // namespace nccl_ha::tests
