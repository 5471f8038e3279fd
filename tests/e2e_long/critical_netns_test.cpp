// A path that is slowed in a lab of four hosts is the one that `nccl-ha trace critical` names, and
// in peace it names none.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/background_lab.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::tests {
namespace {

namespace fs = std::filesystem;

class CriticalInALab : public ::testing::TestWithParam<int> {
 protected:
  ToolRun tool(std::vector<std::string> arguments) const {
    return run_program(NHA_TOOL_FILE, arguments);
  }
  std::vector<std::string> counter_files() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().extension() == ".counters") {
        all.push_back(entry.path().string());
      }
    }
    return all;
  }
  /// The last line that critical prints for what the four ranks recorded; `slowed` may be empty.
  std::string verdict(const std::string& slowed) {
    BackgroundLab lab(NHA_TOOL_FILE, "critical" + std::to_string(GetParam()),
                      {"run",
                       "rails-4x1",
                       "--timeout",
                       "100",
                       "--",
                       "env",
                       "HA_NCCL_COUNTERS_DIR=" + folder_.path(),
                       "nccl-ha",
                       "perf",
                       "all_reduce",
                       "-b",
                       "256K",
                       "-e",
                       "256K",
                       "-I",
                       "1000000",
                       "-c",
                       "0",
                       "--timeout",
                       "90"});
    if (!lab.up() || !lab.carried("h1.rail0", 20'000'000)) {
      return "the lab does not run";
    }
    if (!slowed.empty()) {
      EXPECT_EQ(lab.ask({"slow", slowed, "50mbit"}).status, 0);
    }
    const uint64_t before = lab.carried("h1.rail0");
    lab.carried("h1.rail0", before + 20'000'000);
    const std::string merged = folder_.path() + "/merged";
    std::vector<std::string> merge{"trace", "merge", "-o", merged};
    const auto files = counter_files();
    EXPECT_EQ(files.size(), 4U);
    merge.insert(merge.end(), files.begin(), files.end());
    EXPECT_EQ(tool(merge).status, 0);
    const ToolRun run = tool({"trace", "critical", merged});
    table_ = run.out;
    lab.ask({"stop"});
    lab.wait();
    const size_t end = run.out.find_last_not_of('\n');
    const size_t begin = run.out.rfind('\n', end);
    return run.out.substr(begin + 1, end - begin);
  }

  TemporaryFolder folder_;
  std::string table_;  ///< what critical printed
};

TEST_P(CriticalInALab, NamesThePathThatWasSlowed) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const int host = static_cast<int>(random() % 4) + 1;
  const std::string said = verdict("h" + std::to_string(host) + ".rail0");
  // Both directions of the link were slowed: what the host sends, and what it is sent.
  const std::string before = "h" + std::to_string((host + 2) % 4 + 1) + ":";
  const std::string own = "h" + std::to_string(host) + ":";
  EXPECT_TRUE(said.starts_with("path 0 rail0 of " + before) ||
              said.starts_with("path 0 rail0 of " + own))
      << "slowed: " << own << " said: " << table_;
}

TEST_P(CriticalInALab, NamesNothingInPeace) {
  EXPECT_EQ(verdict(""), "nothing stands out") << table_;
}

INSTANTIATE_TEST_SUITE_P(Runs, CriticalInALab, ::testing::Range(1, 11));

}  // namespace
}  // namespace nccl_ha::tests
