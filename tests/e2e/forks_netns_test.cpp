// Jobs whose processes fork all the time, with all that a process of ours may have: relay sessions
// of others, an agent, counters.  What a single child may do is in trap_fork_test.cpp.
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "tests/support/mesh_lab.h"

namespace nccl_ha::tests {
namespace {

constexpr unsigned forks_at_least = 4;  ///< one of each kind

/// On each of `ranks`: all children ended as they should, and there were some.
void expect_forks(const std::string& out, size_t ranks) {
  const std::regex line(R"(forks: (\d+) children ended well, (\d+) did not)");
  size_t found = 0;
  for (std::sregex_iterator at(out.begin(), out.end(), line), end; at != end; ++at) {
    ++found;
    EXPECT_GE(std::stoul((*at)[1]), forks_at_least);
    EXPECT_EQ((*at)[2], "0") << out;
  }
  EXPECT_EQ(found, ranks) << out;
}

const std::string perf_that_forks =
    "export NHA_INNER_PLUGIN=" NHA_PLUGIN_FILE
    " NHA_MISDEED=fork:1; "
    "nccl-ha perf all_reduce -w 0 --timeout 90 --plugin " NHA_MODULE_DIR "/corrupting_net.so ";

class JobsThatFork : public ::testing::TestWithParam<const char*> {
 protected:
  std::string mode() const {
    return std::string("export HA_NCCL_USE_PROGRESS_THREAD=") + GetParam() + "; ";
  }
  MeshLab lab_{NHA_TOOL_FILE};
};

TEST_P(JobsThatFork, RelayForEachOtherAsBefore) {
  const ToolRun run =
      lab_.run("ring-4", "inline",
               mode() + perf_that_forks + "-b 256K -e 256K --fault 'cut h1-h2 --for 1s@1500ms'");
  expect_right(run);
  expect_forks(run.out, 4);
  EXPECT_EQ(count(run.out, " lost: "), 0U) << run.out;
}

TEST_P(JobsThatFork, StayWithTheirAgent) {
  constexpr size_t hosts = 4;
  const ToolRun run =
      lab_.run("islands-2", "off",
               mode() +
                   "export MPIB_MODE=1 MPIB_HCA_SOUT=sout MPIB_HCA_SUP=sin HA_NCCL_IFNAME=sout,sin "
                   "HA_NCCL_COUNTERS_DIR=$PWD MPIB_AGENT_DIR=$PWD/$RANK; "
                   "echo '{\"directory\": \"'$MPIB_AGENT_DIR'\", \"page\": \"\", "
                   "\"telemetry\": {\"listen\": \"\"}}' > $RANK.json; "
                   "coproc AGENT { exec nccl-ha agent --settings $RANK.json 2>&1; }; "
                   "grep -qm1 'agent: ready' <&${AGENT[0]} || exit 9; " +
                   perf_that_forks +
                   "-v -b 64K -e 64K --fault 'cut h1.sin --for 500ms@1500ms'; status=$?; "
                   "kill $AGENT_PID; exit $status");
  expect_right(run);
  expect_forks(run.out, hosts);
  EXPECT_EQ(count(run.out, "the transport agent in "), hosts) << "once on each: " << run.out;
}

INSTANTIATE_TEST_SUITE_P(Modes, JobsThatFork, ::testing::Values("0", "1"), [](const auto& mode) {
  return std::string(*mode.param == '1' ? "threads" : "inline");
});

}  // namespace
}  // namespace nccl_ha::tests
