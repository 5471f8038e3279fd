// The help texts of all commands.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

constexpr size_t narrow_terminal = 80;

/// The commands below the one that `words` name, as its help lists them; its lines are looked at.
std::vector<std::string> look_at_help(const std::vector<std::string>& words) {
  std::vector<std::string> asked = words;
  asked.emplace_back("--help");
  const ToolRun run = run_program(NHA_TOOL_FILE, asked);
  EXPECT_EQ(run.status, 0) << run.err;
  std::vector<std::string> below;
  bool lists = false;
  std::istringstream in(run.out);
  for (std::string line; std::getline(in, line);) {
    EXPECT_LE(line.size(), narrow_terminal) << line;
    const bool item = line.starts_with("  ") && line.size() > 2 && line[2] != ' ';
    if (lists && item) {
      below.push_back(line.substr(2, line.find(' ', 2) - 2));
    }
    lists = line == "Subcommands:" || (lists && !line.empty());
  }
  return below;
}

TEST(Help, HasLinesForANarrowTerminal) {
  size_t commands = 0;
  std::vector<std::vector<std::string>> left{{}};
  while (!left.empty()) {
    const std::vector<std::string> words = left.back();
    left.pop_back();
    for (const std::string& name : look_at_help(words)) {
      left.push_back(words);
      left.back().push_back(name);
      ++commands;
    }
  }
  EXPECT_GE(commands, 20U) << "are they listed in another way?";
}

}  // namespace
}  // namespace nccl_ha::tests
