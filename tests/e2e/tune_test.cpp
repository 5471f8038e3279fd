// nccl-ha tune, interrupted and gone on with, as a user does it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

class Tune : public ::testing::Test {
 protected:
  std::vector<std::string> arguments() const {
    return {"tune",   "-b",     "64K",     "-e",   "64K",      "-I",           "3", "--rounds", "2",
            "--axis", "window", "--state", state_, "--plugin", NHA_PLUGIN_FILE};
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> all;
    std::ifstream file(state_);
    for (std::string line; std::getline(file, line);) {
      all.push_back(line);
    }
    return all;
  }
  /// In a process group of its own; what it says on standard error goes into a file.
  pid_t start() const {
    std::vector<std::string> words = arguments();
    std::vector<char*> raw{const_cast<char*>(NHA_TOOL_FILE)};
    for (std::string& word : words) {
      raw.push_back(word.data());
    }
    raw.push_back(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      setpgid(0, 0);
      signal(SIGINT, SIG_DFL);
      dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
      dup2(open(said_.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
      execv(NHA_TOOL_FILE, raw.data());
      _exit(127);
    }
    setpgid(pid, pid);
    return pid;
  }
  template <class Condition>
  static bool comes_true(Condition&& condition) {
    const auto deadline = steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (steady_clock::now() > deadline) {
        return false;
      }
      sched_yield();
    }
    return true;
  }

  TemporaryFolder folder_{"/dev/shm"};
  const std::string state_ = folder_.path() + "/state";
  const std::string said_ = folder_.path() + "/said";
};

TEST_F(Tune, GoesOnWhereItWasInterruptedAndLeavesNoLoadBehind) {
  const pid_t pid = start();
  ASSERT_GT(pid, 0);
  EXPECT_TRUE(comes_true([this] { return !lines().empty(); }));
  kill(pid, SIGINT);  // to it alone
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_TRUE(comes_true([pid] { return kill(-pid, 0) != 0; })) << "its ranks still run";
  kill(-pid, SIGKILL);
  std::string said;
  std::getline(std::ifstream(said_), said, '\0');
  EXPECT_NE(said.find("goes on from what is in " + state_), std::string::npos) << said;

  const std::vector<std::string> before = lines();
  const ToolRun rest = run_program(NHA_TOOL_FILE, arguments());
  EXPECT_EQ(rest.status, 0) << rest.err;
  EXPECT_NE(rest.out.find("recommended:"), std::string::npos) << rest.out;
  const std::vector<std::string> after = lines();
  ASSERT_GE(after.size(), before.size());
  std::set<std::string> trials;
  for (size_t i = 0; i < after.size(); ++i) {
    if (i < before.size()) {
      EXPECT_EQ(after[i], before[i]);
    }
    const json one = json::parse(after[i]);
    EXPECT_EQ(one["failure"], "") << after[i];
    trials.insert(one["axis"].dump() + one["candidate"].dump() + one["against"].dump());
  }
  EXPECT_EQ(trials.size(), after.size()) << "what was measured is not measured again";
}

/// Two of them here, each started by what stands for ssh.
TEST_F(Tune, RunsBetweenHosts) {
  const std::string shell = folder_.path() + "/shell";
  std::ofstream(shell) << "#!/bin/sh\nshift\nshift\nexec sh -c \"$*\"\n";
  ASSERT_EQ(chmod(shell.c_str(), 0700), 0);
  std::vector<std::string> words = arguments();
  words.insert(words.end(), {"--hosts", "h1=127.0.0.1,h2=127.0.0.1", "--port", port_to_meet_at(),
                             "--ssh", shell});
  const ToolRun run = run_program(NHA_TOOL_FILE, words, {{"NCCL_SOCKET_IFNAME", "lo"}});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("recommended:"), std::string::npos) << run.out;
  ASSERT_FALSE(lines().empty());
  for (const std::string& line : lines()) {
    const json one = json::parse(line);
    EXPECT_EQ(one["failure"], "");
    EXPECT_NE(one["of"].get<std::string>().find("h1=127.0.0.1"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace nccl_ha::tests
