// Jobs whose processes have keys in common (HA_NCCL_KEY_FILE), and those whose keys do not agree.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

class KeyedJob : public testing::Test {
 protected:
  std::string key_file(const std::string& name, char digit, mode_t mode = 0600) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << "1 " << std::string(64, digit) << "\n";
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  /// Two ranks of a checked all_reduce, each with settings of its own, and `more` options.
  std::array<ToolRun, 2> run(const Environment& first, const Environment& second,
                             const std::vector<std::string>& more = {}) {
    const std::string port = port_to_meet_at();
    std::array<ToolRun, 2> runs;
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Environment whole = rank == 0 ? first : second;
        for (const char* world : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
          whole.emplace_back(world, "2");
        }
        for (const char* own : {"RANK", "LOCAL_RANK"}) {
          whole.emplace_back(own, std::to_string(rank));
        }
        std::vector<std::string> options{"perf",         "all_reduce",
                                         "-b",           "8",
                                         "-e",           "4M",
                                         "-f",           "8",
                                         "-I",           "3",
                                         "--plugin",     NHA_PLUGIN_FILE,
                                         "--rendezvous", "127.0.0.1:" + port};
        options.insert(options.end(), more.begin(), more.end());
        runs[rank] = run_program(NHA_TOOL_FILE, options, whole);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return runs;
  }
  /// One of the ranks says it, and neither ends well.
  static void expect_refused(const std::array<ToolRun, 2>& runs, const std::string& why) {
    EXPECT_TRUE(runs[0].err.find(why) != std::string::npos ||
                runs[1].err.find(why) != std::string::npos)
        << runs[0].err << runs[1].err;
    for (const ToolRun& run : runs) {
      EXPECT_NE(run.status, 0);
      EXPECT_FALSE(run.timed_out);
    }
  }

  TemporaryFolder folder_;
};

TEST_F(KeyedJob, EveryByteArrivesTaggedAndEncrypted) {
  const std::string keys = key_file("keys", 'a');
  for (const char* threads : {"0", "1"}) {
    for (const char* encrypt : {"0", "1"}) {
      const auto runs = run({{"HA_NCCL_KEY_FILE", keys},
                             {"HA_NCCL_ENCRYPT", encrypt},
                             {"HA_NCCL_USE_PROGRESS_THREAD", threads}},
                            {{"HA_NCCL_KEY_FILE", keys}, {"HA_NCCL_USE_PROGRESS_THREAD", threads}});
      EXPECT_EQ(runs[0].status, 0) << runs[0].err;
      EXPECT_EQ(runs[1].status, 0) << runs[1].err;
      EXPECT_NE(runs[0].out.find("Out of bounds values : 0 OK"), std::string::npos) << runs[0].out;
    }
  }
}

/// docs/sessions.md; where one side does not share, each connection has a stream of its own.
TEST_F(KeyedJob, EveryByteArrivesWhereConnectionsShareStreams) {
  const std::string keys = key_file("keys", 'a');
  for (const char* shares : {"1", "0"}) {
    const auto runs =
        run({{"HA_NCCL_KEY_FILE", keys}, {"HA_NCCL_PEER_SESSIONS", "1"}},
            {{"HA_NCCL_KEY_FILE", keys}, {"HA_NCCL_PEER_SESSIONS", shares}}, {"--conns", "8"});
    EXPECT_EQ(runs[0].status, 0) << runs[0].err;
    EXPECT_EQ(runs[1].status, 0) << runs[1].err;
    EXPECT_NE(runs[0].out.find("Out of bounds values : 0 OK"), std::string::npos) << runs[0].out;
  }
}

TEST_F(KeyedJob, AKeyOnOneSideOnlyIsSaidAtOnce) {
  const std::string keys = key_file("keys", 'a');
  for (const bool first : {true, false}) {
    const Environment with{{"HA_NCCL_KEY_FILE", keys}};
    const auto runs = run(first ? with : Environment{}, first ? Environment{} : with);
    expect_refused(runs, "HA_NCCL_KEY_FILE is set ");
    EXPECT_LT(std::min(runs[0].took, runs[1].took), std::chrono::seconds(10));
  }
}

TEST_F(KeyedJob, KeysThatDoNotAgreeAreSaidWhenTheTimeIsUp) {
  const auto runs =
      run({{"HA_NCCL_KEY_FILE", key_file("one", 'a')}, {"HA_NCCL_CONNECT_TIMEOUT_MS", "2000"}},
          {{"HA_NCCL_KEY_FILE", key_file("other", 'b')}, {"HA_NCCL_CONNECT_TIMEOUT_MS", "2000"}});
  expect_refused(runs, "HA_NCCL_KEY_FILE must name files with the same keys on both hosts");
}

TEST_F(KeyedJob, AKeyFileThatCannotBeUsedEndsTheJobWithItsReason) {
  const std::string keys = key_file("keys", 'a');
  const Environment good{{"HA_NCCL_KEY_FILE", keys}};
  expect_refused(run(good, {{"HA_NCCL_KEY_FILE", folder_.path() + "/none"}}),
                 "HA_NCCL_KEY_FILE: cannot read");
  expect_refused(run(good, {{"HA_NCCL_KEY_FILE", key_file("open", 'a', 0644)}}),
                 "HA_NCCL_KEY_FILE: ");
  expect_refused(run({{"HA_NCCL_ENCRYPT", "1"}}, {{"HA_NCCL_ENCRYPT", "1"}}),
                 "HA_NCCL_KEY_FILE has to name a file with keys");
}

}  // namespace
}  // namespace nccl_ha::tests
