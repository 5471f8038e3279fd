// A rail dies under the built plugin, and traffic takes the other one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/paths_in_lab.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

constexpr const char* verified = "Out of bounds values : 0 OK";
constexpr const char* moved = " moved to the shadow path 1";
constexpr const char* moved_back = " moved back to path 0";

/// Two hosts with two rails that reduce for as long as the faults go on, and a little longer. Times
/// may be @up and @back (paths_in_lab.h).
ToolRun reduce(const std::string& faults, const std::vector<std::string>& settings,
               const std::string& more = "") {
  static int labs = 0;
  const TemporaryFolder folder;
  const bool waits = faults.find("@up") != std::string::npos;
  std::vector<std::string> arguments{
      "lab",       "run",
      "pair",      "-q",
      "--timeout", "110",
      "--name",    "shadow" + std::to_string(getpid()) + "." + std::to_string(labs++)};
  for (const std::string& setting : settings) {
    arguments.insert(arguments.end(), {"--env", setting});
  }
  arguments.insert(
      arguments.end(),
      {"--env", "HA_NCCL_FABRIC=datagram", "--", "bash", "-c",
       (waits ? tell_of_paths(folder.path()) : "") +
           "exec nccl-ha perf all_reduce -b 256K -e 256K -w 0 -I 20 --timeout 100 --fault '" +
           with_files_of(folder.path(), faults) + "' " + more + " 2>&1"});
  return run_program(NHA_TOOL_FILE, arguments, {}, std::chrono::seconds(120));
}

class ShadowModes : public testing::TestWithParam<const char*> {};

TEST_P(ShadowModes, ARailThatIsGoneForGood) {
  // The second fault hits a rail that nothing uses any more, a second later.
  const ToolRun run = reduce("cut rail0@up, slow rail0 1gbit@1100ms", {GetParam()});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 1U) << run.out;
  EXPECT_EQ(count(run.out, moved), 2U) << "one for each connection: " << run.out;
  EXPECT_EQ(count(run.out, " is back after "), 0U) << run.out;
}

TEST_P(ShadowModes, EitherRailInTurnSilentOrPulled) {
  const ToolRun run = reduce(
      "heal@up, cut rail0 --silent --for 700ms@200ms..500ms, cut rail1 --silent --for "
      "700ms@1500ms..1900ms, "
      "cut rail0 --for 700ms@3s..3500ms, cut rail1 --for 700ms@5s..5500ms",
      {GetParam()}, "--json /dev/stdout");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 1U) << run.out;
  EXPECT_GE(count(run.out, moved) + count(run.out, moved_back), 4U) << run.out;
  EXPECT_EQ(count(run.out, "\"stall_ms\""), 4U) << run.out;
}

INSTANTIATE_TEST_SUITE_P(Modes, ShadowModes,
                         testing::Values("HA_NCCL_USE_PROGRESS_THREAD=1",
                                         "HA_NCCL_USE_PROGRESS_THREAD=0"),
                         [](const auto& instance) {
                           return std::string(instance.param).back() == '1' ? "threads" : "inline";
                         });

TEST(Shadow, TrafficGoesBackWhereThatIsWanted) {
  const ToolRun run = reduce("cut rail0 --silent --for 500ms@up, slow rail1 8gbit@3200ms",
                             {"HA_NCCL_ENABLE_FAILBACK=1", "HA_NCCL_FAILBACK_MS=500",
                              "HA_NCCL_DEBUG=2", "NCCL_DEBUG=INFO"},
                             "-v");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 1U) << run.out;
  EXPECT_GE(count(run.out, moved), 1U) << run.out;
  EXPECT_GE(count(run.out, moved_back), 1U) << run.out;
}

// The stream of the control connection lies on rail0, which is gone when rail1 fails too: both
// sides have to find each other again.
// Three times HA_NCCL_RTO_MS is less than the second cut lasts, so that its path is given up.
TEST(Shadow, OneRailForGoodAndTheOtherForAWhile) {
  const ToolRun run = reduce("cut rail0@up, cut rail1 --for 1200ms@1100ms, slow rail1 8gbit@3600ms",
                             {"HA_NCCL_RTO_MS=300"}, "-v");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 1U) << run.out;
  EXPECT_GE(count(run.out, " was made anew"), 2U) << "each side says so: " << run.out;
  EXPECT_GE(count(run.out, "path 1 of the connection"), 4U) << run.out;
}

// The same here, with the only cut; the job goes on until after it.
TEST(Shadow, WithoutItAConnectionWaitsForItsOwnNic) {
  const ToolRun run = reduce("cut rail0 --for 700ms@300ms, slow rail0 8gbit@2500ms",
                             {"HA_NCCL_SHADOW_PATHS=0", "HA_NCCL_RTO_MS=100"});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 1U) << run.out;
  EXPECT_EQ(count(run.out, moved), 0U) << run.out;
  EXPECT_GE(count(run.out, " is back after "), 2U) << run.out;
}

// The standby's cable is out for longer than one attempt lasts, and between the rails there is no
// way.
TEST(Shadow, ARailThatWasOutForLongCarriesWhenTheOtherOneFails) {
  const ToolRun run = reduce("cut rail1 --for 4s@up, cut rail0 --for 3s@back", {});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 1U) << run.out;
  EXPECT_GE(count(run.out, "rail1 has no link"), 1U) << run.out;
  EXPECT_GE(count(run.out, moved), 2U) << "one for each connection: " << run.out;
  std::smatch stall;
  const std::regex second(R"(# fault 2: cut rail0[^\n]*: stall ([\d.]+) ms)");
  ASSERT_TRUE(std::regex_search(run.out, stall, second)) << run.out;
  EXPECT_LT(std::stod(stall[1]), 700) << run.out;
}

TEST(Shadow, FaultsNeedALab) {
  const ToolRun run =
      run_program(NHA_TOOL_FILE, {"perf", "all_reduce", "-b", "8", "-e", "8", "--plugin",
                                  NHA_PLUGIN_FILE, "--fault", "cut rail0@1s"});
  EXPECT_NE(run.status, 0);
  EXPECT_NE(run.err.find("nccl-ha lab run"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace nccl_ha::tests
