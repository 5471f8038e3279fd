// What commands put on a terminal: tables and help that fit it.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tools/common/command_line.h"
#include "tools/top/screen.h"

namespace nccl_ha::tools {
namespace {

std::vector<CounterRow> some_rows() {
  CounterRow process;
  process.pid = 7;
  process.name = "a-process-with-a-rather-long-name of h1, pid 7";
  process.state = "runs";
  CounterRow path;
  path.kind = CounterRow::Kind::path;
  path.depth = 3;
  path.name = "path 0";
  path.sent = 123456789;
  path.sent_rate = 4e8;
  path.share = 0.5;
  path.idle = 0.25;
  path.state = "in use, epoch 12";
  return {process, path};
}

TEST(TopTable, StateShareAndIdleAreSeenAtEveryWidth) {
  for (const size_t columns : {80U, 100U, 132U, 160U, 200U}) {
    const auto lines = table_lines(some_rows(), columns);
    ASSERT_EQ(lines.size(), 3U);
    for (const std::string& line : lines) {
      EXPECT_LE(line.size(), columns) << line;
    }
    for (const char* title : {"sent/s", "recv/s", "share", "idle", "state"}) {
      EXPECT_NE(lines[0].find(title), std::string::npos) << columns << ": " << lines[0];
    }
    EXPECT_TRUE(lines[2].ends_with(" in use, epoch 12")) << columns << ": " << lines[2];
    EXPECT_NE(lines[2].find(" 50%"), std::string::npos) << lines[2];
    EXPECT_NE(lines[2].find(" 25%"), std::string::npos) << lines[2];
    EXPECT_EQ(lines[0].find("state"), lines[2].find("in use")) << "they stand below each other";
  }
  const auto wide = table_lines(some_rows(), 160);
  for (const char* title : {"sent ", "received", "open", "again ", "again/s"}) {
    EXPECT_NE(wide[0].find(title), std::string::npos) << wide[0];
  }
  EXPECT_NE(wide[1].find("a-process-with-a-rather-long-name of h1, pid 7"), std::string::npos);
}

TEST(Help, FitsATerminal) {
  const std::string text =
      "  --hosts LIST                Hosts, as in a,b,c=10.0.0.3,node[01-08]: the name for the "
      "remote "
      "shell, and the address if so --short does not lead to it\n"
      "\n"
      "A footer that is a long sentence of many words, none of which is long, so that it does not "
      "fit "
      "into one line of a terminal.\n"
      "  "
      "verbatim-and-much-longer-than-a-line-of-a-terminal-may-be-as-names-of-files-sometimes-are-"
      "here\n";
  const std::string out = wrapped_help(text, 80);
  std::istringstream lines(out);
  std::string all;
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_TRUE(line.size() <= 80 || line.find("verbatim") != std::string::npos) << line;
    EXPECT_FALSE(line.starts_with("                              --"))
        << "no option begins: " << line;
  }
  EXPECT_EQ(count, 7U) << out;
  EXPECT_NE(out.find("\n                              so --short does"), std::string::npos) << out;
  EXPECT_EQ(wrapped_help("short\n", 80), "short\n");
  EXPECT_EQ(wrapped_help("# one two three\n", 9), "# one two\n# three\n");
  EXPECT_EQ(wrapped_help("    do: /a/long/path and more\n", 12),
            "    do:\n    /a/long/path\n    and more\n");
}

}  // namespace
}  // namespace nccl_ha::tools
