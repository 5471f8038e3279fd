// Two hosts of a lab whose clocks are set apart: the dumps tell by how much, no further from the
// truth than the bound that they state.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/background_lab.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::tests {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class ClocksInALab : public ::testing::TestWithParam<int> {};

TEST_P(ClocksInALab, LieApartAsFarAsTheyWereSet) {
  const int64_t apart_s = GetParam();
  const TemporaryFolder folder;
  const std::string perf =
      "nccl-ha perf all_reduce -b 256K -e 256K -I 1000000 -c 0 --timeout 90 2>&1";
  // A time namespace shifts the clock of the second host's process alone.
  const std::string command = "[ $RANK = 1 ] && exec unshare --time --fork --monotonic " +
                              std::to_string(apart_s) + " -- " + perf + "; exec " + perf;
  BackgroundLab lab(
      NHA_TOOL_FILE, "clocks" + std::to_string(apart_s),
      {"run", "pair", "--timeout", "100", "--env", "HA_NCCL_COUNTERS_DIR=" + folder.path(), "--env",
       "HA_NCCL_HEARTBEAT_MS=10", "--", "bash", "-c", command});
  ASSERT_TRUE(lab.up());
  ASSERT_TRUE(lab.carried("rail0", 100'000'000));
  std::vector<std::string> summary{"trace", "summary", "--json"};
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path().extension() == ".counters") {
      summary.push_back(entry.path().string());
    }
  }
  ASSERT_EQ(summary.size(), 5U) << "two ranks";
  const ToolRun run = run_program(NHA_TOOL_FILE, summary);
  EXPECT_EQ(lab.ask({"stop"}).status, 0);
  lab.wait();
  const json told = json::parse(run.out, nullptr, false);
  ASSERT_FALSE(told.is_discarded()) << run.out << run.err;
  ASSERT_EQ(told["clocks"].size(), 2U) << run.out;
  EXPECT_FALSE(told["clocks_contradict"].get<bool>());
  int64_t shift_ns = 0;
  for (const json& clock : told["clocks"]) {
    ASSERT_FALSE(clock["bound_ns"].is_null()) << clock.dump();
    const auto bound_ns = clock["bound_ns"].get<int64_t>();
    EXPECT_LE(bound_ns, 5'000'000) << "it would say nothing of what takes milliseconds";
    if (const auto shift = clock["shift_ns"].get<int64_t>(); shift != 0) {
      shift_ns = shift;
      EXPECT_LE(std::abs(std::abs(shift) - apart_s * 1'000'000'000), bound_ns) << clock.dump();
    }
  }
  EXPECT_NE(shift_ns, 0) << run.out;
}

INSTANTIATE_TEST_SUITE_P(Seconds, ClocksInALab, ::testing::Values(1, 3600));

}  // namespace
}  // namespace nccl_ha::tests
