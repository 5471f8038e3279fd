// A name that the resolver knows only later, in name spaces of the test's own: Kubernetes tells of
// a host when it runs.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/own_network.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"
#include "tests/support/until.h"

namespace nccl_ha::tests {
namespace {

/// `body` where only loopback and the file `hosts` tell what names mean.
int with_hosts_file(const std::string& hosts, const std::function<void()>& body) {
  std::ofstream(hosts) << "127.0.0.1 localhost\n";
  return test::in_own_network([&] {
    ASSERT_EQ(unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(mount(hosts.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr), 0);
    ASSERT_TRUE(test::ip("link set lo up"));
    body();
  });
}

/// Rank 1 first, and once it has said that it does not know rank 0's host, the name and rank 0.
void meet_by_a_late_name(const std::string& hosts, const std::string& folder,
                         const std::string& command) {
  const std::string said = folder + "/said";
  const auto rank = [&](int number, const std::string& redirection) {
    return run_program("/bin/sh", {"-c", NHA_TOOL_FILE " " + command + redirection},
                       {{"RANK", std::to_string(number)},
                        {"WORLD_SIZE", "2"},
                        {"LOCAL_RANK", std::to_string(number)},
                        {"LOCAL_WORLD_SIZE", "2"},
                        {"MASTER_ADDR", "head-0.late.invalid"},
                        {"MASTER_PORT", "29480"}});
  };
  auto second = std::async(std::launch::async, [&] { return rank(1, " 2> " + said); });
  ASSERT_TRUE(test::until([&] {
    return content_of(said).find("cannot resolve head-0.late.invalid") != std::string::npos;
  })) << content_of(said);
  std::ofstream(hosts, std::ios::app) << "127.0.0.1 head-0.late.invalid\n";
  const ToolRun first = rank(0, "");
  const ToolRun late = second.get();
  EXPECT_EQ(first.status, 0) << first.out << first.err;
  EXPECT_EQ(late.status, 0) << late.out << content_of(said);
}

TEST(LateNames, PerfAndCheckWaitForThem) {
  for (const std::string& command :
       {std::string("perf all_reduce -b 8 -e 8 -I 2 --plugin " NHA_PLUGIN_FILE),
        std::string("check --plugin " NHA_PLUGIN_FILE)}) {
    const TemporaryFolder folder;
    const std::string hosts = folder.path() + "/hosts";
    EXPECT_EQ(with_hosts_file(hosts, [&] { meet_by_a_late_name(hosts, folder.path(), command); }),
              0)
        << command;
  }
}

TEST(LateNames, OneThatNeverComesIsNamedWithWhatToDo) {
  const TemporaryFolder folder;
  EXPECT_EQ(
      with_hosts_file(folder.path() + "/hosts",
                      [] {
                        const ToolRun run = run_program(
                            NHA_TOOL_FILE,
                            {"perf", "all_reduce", "--plugin", NHA_PLUGIN_FILE, "--timeout", "3"},
                            {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "never.invalid"}});
                        EXPECT_EQ(run.status, 1) << run.out << run.err;
                        EXPECT_GE(run.took, std::chrono::seconds(2)) << "it had 3 s";
                        for (const char* part :
                             {"cannot resolve never.invalid", "it tried for ", "MASTER_ADDR"}) {
                          EXPECT_EQ(count(run.err, part) >= 1, true) << part << run.err;
                        }
                      }),
      0);
}

}  // namespace
}  // namespace nccl_ha::tests
