// Counters on a file system that is full, in a mount namespace of the test's own.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>

#include "tests/support/counter_files.h"
#include "tests/support/log_lines.h"

#undef BLOCK_SIZE  // of <sys/mount.h>; concurrentqueue has a constant of that name

namespace nccl_ha {
namespace {

namespace files = std::filesystem;

class CounterSpace : public test::CounterFiles {
 protected:
  /// `body` in a fork where `folder_` has so much room; whether it says yes.
  bool with_room(const char* bytes, const std::function<bool()>& body) const {
    const std::string size = std::string("size=") + bytes;
    const int status = in_fork([&] {
      const bool made = unshare(CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER)) == 0 &&
                        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                        mount("none", folder_.c_str(), "tmpfs", 0, size.c_str()) == 0;
      _exit(made && body() ? 0 : 1);
    });
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  /// A file of 40960 bytes, with what pages take.
  void leave_dead() const {
    in_fork([this] {
      const auto file = make(64);
      if (file != nullptr) {
        raise(SIGKILL);
      }
    });
  }
};

TEST_F(CounterSpace, AFullFileSystemIsPlainMemory) {
  EXPECT_TRUE(with_room("64k", [this] {
    const test::LogLines log;
    const bool none = CounterFile::create({folder_, 4096, 1, 4096}) == nullptr;
    const bool said = log.count("No space left on device") == 1;
    const bool nothing_left = files::is_empty(folder_);
    return none && said && nothing_left && make() != nullptr;  // what fits is made
  }));
}

TEST_F(CounterSpace, WhatTheDeadLeftMakesRoomForTheLiving) {
  EXPECT_TRUE(with_room("360k", [this] {
    leave_dead();
    auto small = make(64);
    const bool kept = small != nullptr && names().size() == 2;  // what fits beside it is kept
    small.reset();
    // 340 KiB; the dead one has 40 of 360.
    const auto large = make(840);
    return kept && large != nullptr && names().size() == 1;
  }));
}

TEST_F(CounterSpace, TheDeadHaveAnEighthOfAFileSystem) {
  EXPECT_TRUE(with_room("256k", [this] {
    leave_dead();
    const bool left = names().size() == 1;
    const auto file = make(64);
    return left && file != nullptr && names().size() == 1;
  }));
}

}  // namespace
}  // namespace nccl_ha
