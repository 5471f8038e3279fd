// Colour and progress: for terminals alone.
#include <gtest/gtest.h>
#include <pty.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "tools/common/terminal.h"

namespace nccl_ha::tools {
namespace {

/// A terminal of its own, and a stream to it.
class Terminal : public ::testing::Test {
 protected:
  void SetUp() override {
    int end = -1;
    ASSERT_EQ(openpty(&reader_, &end, nullptr, nullptr, nullptr), 0);
    stream_ = fdopen(end, "w");
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
  }
  void TearDown() override {
    fclose(stream_);
    close(reader_);
  }
  int reader_ = -1;
  std::FILE* stream_ = nullptr;
};

TEST_F(Terminal, has_colour_unless_it_is_not_wanted) {
  EXPECT_TRUE(shows_colour(stream_));
  setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(shows_colour(stream_)) << "an empty value does not count, says no-color.org";
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(shows_colour(stream_));
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(shows_colour(stream_));
  unsetenv("TERM");
  EXPECT_FALSE(shows_colour(stream_));
}

TEST_F(Terminal, is_what_a_file_is_not) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  EXPECT_FALSE(shows_colour(file));
  std::fclose(file);
}

TEST_F(Terminal, shows_a_line_and_takes_it_away) {
  const int before = dup(STDERR_FILENO);
  dup2(fileno(stream_), STDERR_FILENO);
  {
    ProgressLine progress;
    EXPECT_TRUE(progress.due());
    EXPECT_FALSE(progress.due()) << "not at once again";
    progress.show("7 of 9");
  }
  dup2(before, STDERR_FILENO);
  close(before);
  // The kernel hands a terminal's bytes over in as many pieces as it likes.
  const std::string expected = "\r\x1b[K7 of 9\r\x1b[K";
  std::string text;
  char piece[64];
  while (text.size() < expected.size()) {
    const ssize_t got = read(reader_, piece, sizeof piece);
    ASSERT_GT(got, 0) << "only '" << text << "' came";
    text.append(piece, static_cast<size_t>(got));
  }
  EXPECT_EQ(text, expected);
}

TEST(Painted, has_its_codes_only_where_they_are_shown) {
  EXPECT_EQ(painted("bad", Colour::red, true), "\x1b[31mbad\x1b[0m");
  EXPECT_EQ(painted("bad", Colour::red, false), "bad");
}

}  // namespace
}  // namespace nccl_ha::tools
