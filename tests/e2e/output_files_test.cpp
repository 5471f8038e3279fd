// Where commands write: what -o and the like name, whatever that is.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

namespace fs = std::filesystem;

/// Words of a command, up to the name of what it writes.
using Words = std::vector<std::string>;

class OutputFiles : public testing::Test {
 protected:
  std::string in_folder(const std::string& name) const { return folder_.path() + "/" + name; }
  ToolRun run(Words words, const std::string& to) const {
    words.push_back(to);
    return run_program(NHA_TOOL_FILE, words, {{"HA_NCCL_COUNTERS_DIR", folder_.path()}});
  }
  const std::string dump_ = NHA_SOURCE_DIR "/tests/fuzz/corpus/traces/one_rank";
  const std::vector<Words> commands_{
      {"trace", "dump", dump_, "-o"},
      {"trace", "merge", dump_, "-o"},
      {"trace", "export", dump_, "-o"},
      {"trace", "plot", dump_, "-o"},
      {"report", "-o"},
      {"perf", "sendrecv", "-b", "8", "-e", "8", "-I", "2", "--plugin", NHA_PLUGIN_FILE, "--json"},
      {"perf", "sendrecv", "-b", "8", "-e", "8", "-I", "2", "--plugin", NHA_PLUGIN_FILE, "--csv"},
  };
  TemporaryFolder folder_;
};

TEST_F(OutputFiles, LinksAreFollowedAndModesKept) {
  for (const Words& words : commands_) {
    std::ofstream(in_folder("file")) << "old";
    fs::permissions(in_folder("file"), fs::perms(0640));
    fs::create_symlink("file", in_folder("link"));
    const ToolRun done = run(words, in_folder("link"));
    EXPECT_EQ(done.status, 0) << words[1] << done.err;
    EXPECT_TRUE(fs::is_symlink(in_folder("link"))) << words[1];
    EXPECT_GT(content_of(in_folder("file")).size(), 20U) << words[1];
    EXPECT_EQ(fs::status(in_folder("file")).permissions(), fs::perms(0640)) << words[1];
    fs::remove(in_folder("link"));
    fs::remove(in_folder("file"));
  }
}

TEST_F(OutputFiles, AReportIsForItsOwnerOnly) {
  const ToolRun done = run({"report", "-o"}, in_folder("report"));
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(fs::status(in_folder("report")).permissions(), fs::perms(0600));
}

TEST_F(OutputFiles, AFifoGetsWhatAFileWouldGet) {
  ASSERT_EQ(mkfifo(in_folder("fifo").c_str(), 0600), 0);
  for (const Words& words : commands_) {
    std::string read;
    std::thread reader([&] { read = content_of(in_folder("fifo")); });
    const ToolRun done = run(words, in_folder("fifo"));
    EXPECT_EQ(done.status, 0) << words[1] << done.err;
    struct stat info {};
    EXPECT_EQ(lstat(in_folder("fifo").c_str(), &info), 0);
    EXPECT_TRUE(S_ISFIFO(info.st_mode)) << words[1];
    if (!S_ISFIFO(info.st_mode)) {  // the reader still waits for somebody to open it
      return reader.detach();
    }
    reader.join();
    EXPECT_GT(read.size(), 20U) << words[1];
  }
}

TEST_F(OutputFiles, AFullDiskIsAnErrorThatSaysSo) {
  for (const Words& words : commands_) {
    // By a link: what goes wrong here must not harm the machine's device.
    fs::create_symlink("/dev/full", in_folder("full"));
    const ToolRun done = run(words, in_folder("full"));
    EXPECT_NE(done.status, 0) << words[1];
    EXPECT_NE(done.err.find("No space left on device"), std::string::npos) << words[1] << done.err;
    EXPECT_TRUE(fs::is_symlink(in_folder("full"))) << words[1];
    EXPECT_TRUE(fs::is_character_file("/dev/full")) << words[1];
    fs::remove(in_folder("full"));
  }
}

TEST_F(OutputFiles, WhatCannotBeWrittenIsToldBeforeTheRun) {
  fs::create_directory(in_folder("folder"));
  for (const char* option : {"--json", "--csv", "--plot"}) {
    for (const std::string& to : {in_folder("none/file"), in_folder("folder")}) {
      // A run that would take longer than a test may.
      const ToolRun done = run_program(
          NHA_TOOL_FILE, {"perf", "sendrecv", "-b", "8", "-e", "8", "--seconds", "1000",
                          "--timeout", "2000", "--plugin", NHA_PLUGIN_FILE, option, to});
      EXPECT_EQ(done.status, 2) << option << done.out << done.err;
      EXPECT_NE(done.err.find("cannot write " + to + ": "), std::string::npos) << done.err;
    }
  }
}

TEST_F(OutputFiles, StandardOutputHoldsNothingElse) {
  // By a link, as above: /dev/stdout itself is the machine's.
  fs::create_symlink("/proc/self/fd/1", in_folder("stdout"));
  const ToolRun done = run({"trace", "merge", dump_, "-o"}, in_folder("stdout"));
  EXPECT_EQ(done.status, 0) << done.err;
  std::ofstream(in_folder("again"), std::ios::binary) << done.out;
  const ToolRun read =
      run_program(NHA_TOOL_FILE, {"trace", "summary", "--json", in_folder("again")});
  EXPECT_EQ(read.status, 0) << read.err;
  EXPECT_EQ(count(read.err, "the rest is read"), 0U) << read.err;
  EXPECT_NE(done.err.find("/stdout: "), std::string::npos) << "said elsewhere: " << done.err;
  EXPECT_TRUE(fs::is_symlink(in_folder("stdout")));
}

}  // namespace
}  // namespace nccl_ha::tests
