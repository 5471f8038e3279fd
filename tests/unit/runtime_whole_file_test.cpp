// What a command writes into is what its user named, whatever that is.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <thread>

#include "runtime/base/whole_file.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha {
namespace {

namespace files = std::filesystem;

std::string content_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

mode_t mode_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode;
}

/// Whether it says yes in a fork, which may change what a process is allowed to.
bool read_in_fork(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class WholeFile : public testing::Test {
 protected:
  std::string in_folder(const std::string& name) const { return folder_.path() + "/" + name; }
  size_t names() const {
    return static_cast<size_t>(
        std::distance(files::directory_iterator(folder_.path()), files::directory_iterator()));
  }
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(in_folder(name)) << text;
  }
  tests::TemporaryFolder folder_;
};

TEST_F(WholeFile, ANewOneHasTheModeThatIsAskedForLessTheUmask) {
  const mode_t before = umask(022);
  EXPECT_TRUE(write_file(in_folder("open"), "text"));
  EXPECT_TRUE(write_file(in_folder("own"), std::as_bytes(std::span("x", 1)), 0600));
  umask(before);
  EXPECT_EQ(mode_of(in_folder("open")), S_IFREG | 0644U);
  EXPECT_EQ(mode_of(in_folder("own")), S_IFREG | 0600U);
  EXPECT_EQ(content_of(in_folder("open")), "text");
  EXPECT_EQ(names(), 2U) << "no draft is left";
}

TEST_F(WholeFile, AKnownOneKeepsItsModeAndLosesItsContent) {
  put("file", "what was there before, which is longer");
  chmod(in_folder("file").c_str(), 0640);
  ASSERT_TRUE(write_file(in_folder("file"), "new"));
  EXPECT_EQ(content_of(in_folder("file")), "new");
  EXPECT_EQ(mode_of(in_folder("file")), S_IFREG | 0640U);
  EXPECT_EQ(names(), 1U);
}

TEST_F(WholeFile, LinksAreFollowedAndStay) {
  files::create_directory(in_folder("data"));
  put("data/file", "old");
  files::create_symlink("data/file", in_folder("near"));
  files::create_symlink(in_folder("near"), in_folder("far"));
  files::create_symlink("data/fresh", in_folder("dangling"));
  ASSERT_TRUE(write_file(in_folder("far"), "new"));
  ASSERT_TRUE(write_file(in_folder("dangling"), "born"));
  for (const char* link : {"near", "far", "dangling"}) {
    EXPECT_TRUE(files::is_symlink(in_folder(link))) << link;
  }
  EXPECT_EQ(content_of(in_folder("data/file")), "new");
  EXPECT_EQ(content_of(in_folder("data/fresh")), "born");
}

TEST_F(WholeFile, AFifoIsWrittenInto) {
  const std::string fifo = in_folder("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = content_of(fifo); });
  EXPECT_TRUE(write_file(fifo, "through"));
  reader.join();
  EXPECT_EQ(read, "through");
  EXPECT_TRUE(S_ISFIFO(mode_of(fifo)));
}

TEST_F(WholeFile, ADeviceIsWrittenInto) {
  // By links, so that what goes wrong here does no harm to the machine's own.
  files::create_symlink("/dev/null", in_folder("null"));
  files::create_symlink("/dev/full", in_folder("full"));
  EXPECT_TRUE(write_file(in_folder("null"), "text"));
  const auto full = write_file(in_folder("full"), "text");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().message(),
            "cannot write " + in_folder("full") + ": No space left on device");
  EXPECT_TRUE(files::is_symlink(in_folder("null")));
  EXPECT_TRUE(files::is_symlink(in_folder("full")));
  EXPECT_TRUE(S_ISCHR(mode_of("/dev/null")));
  EXPECT_TRUE(S_ISCHR(mode_of("/dev/full")));
}

TEST_F(WholeFile, AnOpenDescriptorGoesOnWhereItStands) {
  const std::string path = in_folder("file");
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(write(fd, "before ", 7), 7);
  EXPECT_TRUE(write_file("/dev/fd/" + std::to_string(fd), "between"));
  files::create_symlink("/proc/self/fd/" + std::to_string(fd), in_folder("link"));
  EXPECT_TRUE(write_file(in_folder("link"), " and"));
  ASSERT_EQ(write(fd, " after", 6), 6);
  close(fd);
  EXPECT_EQ(content_of(path), "before between and after");
}

TEST_F(WholeFile, WhatCannotBeWrittenIsNamedWithItsReason) {
  files::create_symlink("round", in_folder("round"));
  const std::pair<std::string, const char*> rows[] = {
      {folder_.path(), "Is a directory"},
      {in_folder("none/file"), "No such file or directory"},
      {in_folder("round"), "Too many levels of symbolic links"},
      {"/dev/fd/9999", "Bad file descriptor"},
      {"", "No such file or directory"},
  };
  for (const auto& [path, reason] : rows) {
    const auto written = write_file(path, "text");
    ASSERT_FALSE(written) << path;
    EXPECT_EQ(written.error().message(), "cannot write " + path + ": " + reason);
  }
  EXPECT_EQ(names(), 1U);
}

TEST_F(WholeFile, InAClosedFolderOnlyWhatIsThereIsWritten) {
  put("file", "a longer text than the new one");
  chmod(in_folder("file").c_str(), 0666);
  chmod(folder_.path().c_str(), 0555);
  EXPECT_TRUE(read_in_fork([this] {
    // Root may write anywhere.
    if (geteuid() == 0 && seteuid(65534) != 0) {
      return false;
    }
    const bool into = write_file(in_folder("file"), "new").ok();
    const auto beside = write_file(in_folder("other"), "new");
    return into && !beside && beside.error().sys == EACCES;
  }));
  chmod(folder_.path().c_str(), 0755);
  EXPECT_EQ(content_of(in_folder("file")), "new");
  EXPECT_EQ(names(), 1U);
}

TEST_F(WholeFile, WhereThereIsNoRoomWhatWasThereStays) {
  put("file", "old");
  EXPECT_TRUE(read_in_fork([this] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit few{100, 100};
    setrlimit(RLIMIT_FSIZE, &few);
    const auto written = write_file(in_folder("file"), std::string(1000, 'x'));
    return !written && written.error().sys == EFBIG;
  }));
  EXPECT_EQ(content_of(in_folder("file")), "old");
  EXPECT_EQ(names(), 1U);
}

TEST_F(WholeFile, InAFolderOfOthersALinkIsReplacedAndNotFollowed) {
  put("victim", "old");
  files::create_symlink("victim", in_folder("trap"));
  ASSERT_TRUE(replace_file(in_folder("trap"), std::as_bytes(std::span("new", 3)), 0600));
  EXPECT_EQ(content_of(in_folder("victim")), "old");
  EXPECT_FALSE(files::is_symlink(in_folder("trap")));
  EXPECT_EQ(mode_of(in_folder("trap")), S_IFREG | 0600U);
}

TEST_F(WholeFile, TheLongestNameHasADraftToo) {
  const std::string path = in_folder(std::string(255, 'n'));
  EXPECT_TRUE(write_file(path, "one"));
  EXPECT_TRUE(write_file(path, "two"));
  EXPECT_EQ(content_of(path), "two");
}

}  // namespace
}  // namespace nccl_ha
