// Cables are pulled under the built plugin, and the job goes on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/background_lab.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::tests {
namespace {

/// Two hosts that reduce over rail0, at the rate of a slow link, until `faults` are over.
ToolRun reduce_over_one_rail(const std::string& before, const std::vector<std::string>& settings,
                             const std::string& faults) {
  std::vector<std::string> arguments{"lab",       "run", "pair",     "-q",
                                     "--timeout", "110", "--script", "0s slow rail0 400mbit"};
  for (const std::string& setting : settings) {
    arguments.insert(arguments.end(), {"--env", setting});
  }
  // Silence for three times HA_NCCL_RTO_MS is what the shortest cut here, of 600 ms, must exceed
  // for a path to be given up.
  for (const char* setting :
       {"HA_NCCL_FABRIC=datagram", "HA_NCCL_IFNAME=rail0", "HA_NCCL_RTO_MS=100"}) {
    arguments.insert(arguments.end(), {"--env", setting});
  }
  const std::string perf = before +
                           "exec nccl-ha perf all_reduce -b 1M -e 1M -w 0 --timeout 100 --fault '" +
                           faults + "' 2>&1";
  arguments.insert(arguments.end(), {"--", "bash", "-c", perf});
  return run_program(NHA_TOOL_FILE, arguments);
}

/// The last of several: with the link the kernel forgets its neighbours, and asks for them once a
/// second, three times, which may be before packets get through again.
constexpr const char* last_cut = "cut rail0 --for 700ms@";

/// Dumps in `folder` made for that reason that name each of `parts`.
size_t dumps_with(const std::string& folder, const std::string& reason,
                  const std::vector<std::string>& parts) {
  size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().string();
    const ToolRun summary = run_program(NHA_TOOL_FILE, {"trace", "summary", file});
    const ToolRun events = run_program(NHA_TOOL_FILE, {"trace", "show", file});
    const bool all = std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return count(events.out, part) > 0;
    });
    found += all && count(summary.out, reason) > 0 ? 1 : 0;
  }
  return found;
}

class FailoverModes : public testing::TestWithParam<bool> {};

TEST_P(FailoverModes, CutsUnderAReductionCostTimeOnly) {
  const TemporaryFolder dumps;
  const ToolRun run = reduce_over_one_rail(
      "",
      {GetParam() ? "HA_NCCL_USE_PROGRESS_THREAD=1" : "HA_NCCL_USE_PROGRESS_THREAD=0",
       "HA_NCCL_TRACE_DIR=" + dumps.path()},
      "cut rail0 --silent --from h1 --for 700ms@500ms, "
      "cut rail0 --silent --from h2 --for 700ms@2500ms, "
      "cut rail0 --silent --for 700ms@4500ms, " +
          std::string(last_cut) + "6500ms");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "Out of bounds values : 0 OK"), 1U) << run.out;
  EXPECT_GE(count(run.out, " is down: "), 8U) << "each cut, on both sides: " << run.out;
  EXPECT_GE(count(run.out, " is back after "), 8U) << run.out;
  EXPECT_GE(count(run.out, " go again, "), 4U) << run.out;
  // The last dump of a rank is made at its end; what it sent and what it got is in it.
  EXPECT_GE(dumps_with(dumps.path(), "a path was replaced",
                       {"failover", "path_up", "in_use", "answer_heard", "report_said"}),
            2U)
      << "one of each host";
}

TEST_P(FailoverModes, SeveralPathsOfOneConnection) {
  const ToolRun run = reduce_over_one_rail(
      "",
      {GetParam() ? "HA_NCCL_USE_PROGRESS_THREAD=1" : "HA_NCCL_USE_PROGRESS_THREAD=0",
       "HA_NCCL_DGRAM_PATHS=3"},
      "cut rail0 --silent --for 600ms@500ms, " + std::string(last_cut) + "2500ms");
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
  const ToolRun run =
      reduce_over_one_rail("[ $RANK = 1 ] && export HA_NCCL_ENABLE_BACKUP=0; ",
                           {"HA_NCCL_DGRAM_DEAD_MS=200"}, "cut rail0 --for 3s@500ms");
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  EXPECT_EQ(count(run.out, " is down: "), 0U) << run.out;
  EXPECT_GE(count(run.out, "gave ncclRemoteError"), 1U) << run.out;
}

/// Only the sender's side could notice: what it sent is acknowledged, and it waits for a
/// clear-to-send.
TEST(Failover, APeerThatNothingLeadsToEndsBothSidesAlsoOneThatOnlyWaits) {
  // A heartbeat, three times HA_NCCL_RTO_MS, the budget (docs/failover.md); and what two busy
  // processors may add.
  constexpr double bound_s = 0.2 + 3 * 1.0 + 5.0;
  constexpr double busy_machine_s = 3;
  for (const char* progress_thread : {"1", "0"}) {
    // Each line with the time at which it came.  perf itself, whose ranks may be waiting for each
    // other over the network that is gone, ends after 18 s.
    BackgroundLab lab(
        NHA_TOOL_FILE, "unreachable" + std::to_string(getpid()) + progress_thread,
        {"run", "rails-2x1", "-q", "--timeout", "60", "--env", "HA_NCCL_FABRIC=datagram", "--env",
         "HA_NCCL_RETRY_BUDGET_MS=5000", "--env",
         std::string("HA_NCCL_USE_PROGRESS_THREAD=") + progress_thread, "--", "bash", "-c",
         "(nccl-ha perf pt2pt -b 64K -e 64K -I 1000000 --timeout 18 2>&1; echo ended with $?) | "
         "while IFS= read -r line; do echo \"@$EPOCHREALTIME $line\"; done"});
    ASSERT_TRUE(lab.carried("rail0", 10'000'000));
    timespec now{};
    ASSERT_EQ(clock_gettime(CLOCK_REALTIME, &now), 0);
    const double cut = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
    ASSERT_EQ(lab.ask({"cut", "rail0", "--silent"}).status, 0);
    ASSERT_EQ(lab.ask({"cut", "mgmt", "--silent"}).status, 0);
    const ToolRun run = lab.wait();
    const std::string failed =
        " failed: no path came back within 5000 ms (HA_NCCL_RETRY_BUDGET_MS)";
    size_t connections = 0;
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find('@');
      if (at == std::string::npos || line.find("connection to ") == std::string::npos ||
          line.find(failed) == std::string::npos || line.find("gave nccl") != std::string::npos) {
        continue;
      }
      ++connections;
      EXPECT_LE(std::stod(line.substr(at + 1)) - cut, bound_s + busy_machine_s) << line;
    }
    EXPECT_EQ(connections, 2U) << "one on each side: " << run.out;
    EXPECT_GE(count(run.out, "gave ncclRemoteError"), 1U) << run.out;
    EXPECT_EQ(count(run.out, "ended with 1"), 2U) << run.out;
  }
}

TEST(Failover, ACutLongerThanTheBudgetIsAnError) {
  const ToolRun run = reduce_over_one_rail(
      "", {"HA_NCCL_RETRY_BUDGET_MS=500", "HA_NCCL_RTO_MS=500"}, "cut rail0 --for 20s@500ms");
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  EXPECT_GE(count(run.out, "no path came back within 500 ms (HA_NCCL_RETRY_BUDGET_MS)"), 1U)
      << run.out;
}

TEST(Failover, CablesThatStayPulledAreWhatIsBlamed) {
  const ToolRun run = run_program(NHA_TOOL_FILE, {"lab",       "run",
                                                  "pair",      "-q",
                                                  "--env",     "HA_NCCL_IFNAME=^mgmt,lo",
                                                  "--env",     "HA_NCCL_FABRIC=datagram",
                                                  "--env",     "HA_NCCL_RETRY_BUDGET_MS=1000",
                                                  "--",        "nccl-ha",
                                                  "perf",      "all_reduce",
                                                  "-b",        "64K",
                                                  "-e",        "64K",
                                                  "-I",        "1000000",
                                                  "--fault",   "cut rail0@0s, cut rail1@0s",
                                                  "--timeout", "40"});
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  const std::string said = run.out + run.err;
  EXPECT_GE(count(said,
                  "no path came back within 1000 ms (HA_NCCL_RETRY_BUDGET_MS); rail0 and "
                  "rail1 of this host have no link: check cables and switch ports"),
            2U)
      << "on both sides: " << said;
  EXPECT_EQ(count(said, "UDP is not filtered"), 0U) << said;
}

}  // namespace
}  // namespace nccl_ha::tests
