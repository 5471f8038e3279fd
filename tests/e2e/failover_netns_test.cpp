// Cables are pulled under the built plugin, and the job goes on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/background_lab.h"

namespace nccl_ha::tests {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t megabytes = 60;
#elif defined(__SANITIZE_ADDRESS__)
constexpr uint64_t megabytes = 160;
#else
constexpr uint64_t megabytes = 500;
#endif

/// Two hosts that reduce `megabytes` over rail0, during which `cut` happens again and again.
ToolRun reduce(const std::string& before, const std::vector<std::string>& settings,
               const std::vector<std::vector<std::string>>& cuts) {
  static int labs = 0;
  std::vector<std::string> arguments{"run", "pair", "-q", "--timeout", "110"};
  for (const std::string& setting : settings) {
    arguments.insert(arguments.end(), {"--env", setting});
  }
  for (const char* setting :
       {"HA_NCCL_FABRIC=datagram", "HA_NCCL_IFNAME=rail0", "HA_NCCL_RTO_MS=200"}) {
    arguments.insert(arguments.end(), {"--env", setting});
  }
  const std::string perf = before + "exec nccl-ha perf all_reduce -b 1M -e 1M -w 0 -I " +
                           std::to_string(megabytes) + " --timeout 100 2>&1";
  arguments.insert(arguments.end(), {"--", "bash", "-c", perf});
  BackgroundLab lab(NHA_TOOL_FILE,
                    "failover" + std::to_string(getpid()) + "." + std::to_string(labs++),
                    arguments);
  // By what has crossed the cable a cut is in the middle of a transfer, and the cut before it is
  // over.  Asking takes time too, so most of the transfer lies behind the last one.
  const uint64_t between = megabytes * 1'000'000 / (2 * cuts.size() + 2);
  uint64_t crossed = 0;
  for (const std::vector<std::string>& cut : cuts) {
    EXPECT_TRUE(lab.carried("rail0", crossed + between));
    EXPECT_EQ(lab.ask(cut).status, 0);
    crossed = lab.carried("rail0");
  }
  return lab.wait();
}

class FailoverModes : public testing::TestWithParam<bool> {};

TEST_P(FailoverModes, CutsUnderAReductionCostTimeOnly) {
  const ToolRun run =
      reduce("", {GetParam() ? "HA_NCCL_USE_PROGRESS_THREAD=1" : "HA_NCCL_USE_PROGRESS_THREAD=0"},
             {{"cut", "rail0", "--for", "700ms"},
              {"cut", "rail0", "--silent", "--from", "h1", "--for", "700ms"},
              {"cut", "rail0", "--silent", "--from", "h2", "--for", "700ms"},
              {"cut", "rail0", "--silent", "--for", "700ms"}});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "Out of bounds values : 0 OK"), 1U) << run.out;
  EXPECT_GE(count(run.out, " is down: "), 8U) << "each cut, on both sides: " << run.out;
  EXPECT_GE(count(run.out, " is back after "), 8U) << run.out;
  EXPECT_GE(count(run.out, " go again, "), 4U) << run.out;
}

TEST_P(FailoverModes, SeveralPathsOfOneConnection) {
  const ToolRun run =
      reduce("",
             {GetParam() ? "HA_NCCL_USE_PROGRESS_THREAD=1" : "HA_NCCL_USE_PROGRESS_THREAD=0",
              "HA_NCCL_DGRAM_PATHS=3"},
             {{"cut", "rail0", "--for", "600ms"}, {"cut", "rail0", "--silent", "--for", "600ms"}});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "Out of bounds values : 0 OK"), 1U) << run.out;
  // Which of the three have work under way at that moment is chance.
  EXPECT_GE(count(run.out, " is down: "), 4U) << run.out;
  EXPECT_GE(count(run.out, " is back after "), 4U) << run.out;
}

INSTANTIATE_TEST_SUITE_P(Modes, FailoverModes, testing::Bool(), [](const auto& instance) {
  return std::string(instance.param ? "threads" : "inline");
});

TEST(Failover, WhereOneSideHasItOffACutIsAnErrorOnBoth) {
  // HA_NCCL_RTO_MS counts only where failover is on, and either side may be the one that waits.
  const ToolRun run = reduce("[ $RANK = 1 ] && export HA_NCCL_ENABLE_BACKUP=0; ",
                             {"HA_NCCL_DGRAM_DEAD_MS=200"}, {{"cut", "rail0", "--for", "3s"}});
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  EXPECT_EQ(count(run.out, " is down: "), 0U) << run.out;
  EXPECT_GE(count(run.out, "gave ncclRemoteError"), 1U) << run.out;
}

TEST(Failover, ACutLongerThanTheBudgetIsAnError) {
  const ToolRun run =
      reduce("", {"HA_NCCL_RETRY_BUDGET_MS=500"}, {{"cut", "rail0", "--for", "20s"}});
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  EXPECT_GE(count(run.out, "no path came back within 500 ms (HA_NCCL_RETRY_BUDGET_MS)"), 1U)
      << run.out;
}

}  // namespace
}  // namespace nccl_ha::tests
