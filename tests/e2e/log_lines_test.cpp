// Lines of the log that tell of one connection among several to the same peer.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

TEST(LogLines, TellConnectionsToOnePeerApart) {
  const ToolRun run =
      run_program(NHA_TOOL_FILE, {"perf", "all_reduce", "-b", "8", "-e", "8", "-I", "2", "--conns",
                                  "3", "-v", "--plugin", NHA_PLUGIN_FILE});
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  std::istringstream lines(run.out + run.err);
  std::set<std::string> seen;
  std::map<std::string, size_t> of_connection;
  size_t told = 0;
  for (std::string line; std::getline(lines, line);) {
    const size_t number = line.find(" #");
    if (line.find("connected to ") == std::string::npos &&
        line.find("accepted ") == std::string::npos) {
      continue;
    }
    ++told;
    EXPECT_TRUE(seen.insert(line).second) << "another connection's line reads alike: " << line;
    ASSERT_NE(number, std::string::npos) << line;
    ++of_connection[line.substr(number, 18)];
  }
  EXPECT_GE(told, 12U) << "two ranks, three connections each way, both ends: " << run.out;
  for (const auto& [name, count] : of_connection) {
    EXPECT_EQ(count, 2U) << "both ends of a connection have one name, not " << name;
  }
}

}  // namespace
}  // namespace nccl_ha::tests
