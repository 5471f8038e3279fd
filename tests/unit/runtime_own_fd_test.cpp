#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "runtime/base/own_fd.h"
#include "runtime/base/process_life.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/until.h"

namespace nccl_ha {
namespace {

using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }
int make_event() {
  return make_fd([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}
pid_t bare_clone() { return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)); }

/// Whether `holds` is true in a child.
bool in_child(const std::function<bool()>& holds, pid_t (*make)() = fork) {
  const pid_t child = make();
  if (child == 0) {
    alarm(20);
    _exit(holds() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status == 0;
}

TEST(OwnFds, AChildHasNoneOfThem) {
  const int ours = make_event();
  const int others = eventfd(0, EFD_CLOEXEC);
  ASSERT_TRUE(is_open(ours) && is_open(others));
  EXPECT_TRUE(in_child([&] { return !is_open(ours) && is_open(others); }));
  EXPECT_TRUE(is_open(ours));
  close_fd(ours);
  EXPECT_FALSE(is_open(ours));
  close_fd(others);
  EXPECT_TRUE(is_open(others)) << "closed what is not the library's";
  close(others);
}

TEST(OwnFds, AChildClosesNothingThatHasAnOldNumber) {
  const int ours = make_event();
  EXPECT_TRUE(in_child([&] {
    const bool reused = dup2(STDERR_FILENO, ours) == ours;  // the child's own
    close_fd(ours);                                         // by an object of its parent's
    return reused && is_open(ours);
  }));
  close_fd(ours);
}

TEST(OwnFds, WhatIsNoLongerTheirsStaysInAChild) {
  const int given_away = make_event();
  {
    OwnFds own;
    EXPECT_TRUE(own.remove(given_away));
    EXPECT_FALSE(own.remove(given_away));
  }
  EXPECT_TRUE(in_child([&] { return is_open(given_away); }));
  close(given_away);
}

/// A host process that has closed them writes to them all the same, and libuv ends a process that
/// closes one of that number.
TEST(OwnFds, NoneHasTheNumberOfAStandardStream) {
  const int kept = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 100);
  close(STDIN_FILENO);
  const int fd = make_fd([] { return eventfd(0, EFD_CLOEXEC); });
  EXPECT_GT(fd, STDERR_FILENO);
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(fcntl(STDIN_FILENO, F_GETFD), -1) << "it is open twice";
  auto streams = make_uv_streams();
  EXPECT_TRUE(streams);
  EXPECT_EQ(fcntl(STDIN_FILENO, F_GETFD), -1) << "libuv has it";
  streams->reset();
  close_fd(fd);
  if (kept >= 0) {
    dup2(kept, STDIN_FILENO);
    close(kept);
  }
}

TEST(OwnFds, AnErrorStaysOne) {
  errno = 0;
  EXPECT_EQ(make_fd([] {
              errno = EMFILE;
              return -1;
            }),
            -1);
  EXPECT_EQ(errno, EMFILE);
  close_fd(-1);
}

TEST(OwnFds, AForkWaitsForOneThatIsBeingMade) {
  const pid_t forks = gettid();
  const auto none_is_left_to_the_child = [&](Steady::duration& took) {
    std::atomic<int> making{-1};
    std::thread maker([&] {
      static_cast<void>(make_fd([&] {
        const int fd = eventfd(0, EFD_CLOEXEC);
        making = fd;
        // The fork begins between the descriptor and its note.
        EXPECT_TRUE(test::until([&] { return test::sleeps(forks); }));
        return fd;
      }));
    });
    while (making.load() < 0) {
      sched_yield();  // it must not sleep before it forks
    }
    const auto begun = Steady::now();
    const bool none = in_child([&] { return !is_open(making); });
    took = Steady::now() - begun;
    maker.join();
    EXPECT_TRUE(is_open(making));
    close_fd(making);
    return none;
  };
  // On a busy machine a fork may be out of patience before the maker runs.
  Steady::duration took{};
  bool none = none_is_left_to_the_child(took);
  for (int i = 0; i < 50 && !none && took > milliseconds(100); ++i) {
    none = none_is_left_to_the_child(took);
  }
  EXPECT_TRUE(none);
}

/// By another thread, until the object's end.
class HeldElsewhere {
 public:
  ~HeldElsewhere() {
    end();
    holder_.join();
  }
  bool begun() {
    return test::until([&] { return held_.load(); });
  }
  void end() {
    ends_ = true;
    ends_.notify_one();
  }

 private:
  std::atomic<bool> held_{false};
  std::atomic<bool> ends_{false};
  std::thread holder_{[this] {
    OwnFds own;
    held_ = true;
    ends_.wait(false);
  }};
};

TEST(OwnFds, AForkDoesNotWaitForEver) {
  HeldElsewhere held;
  ASSERT_TRUE(held.begun());
  const auto begun = Steady::now();
  EXPECT_TRUE(in_child([] {
    const int fd = make_event();  // its lock is its own
    close_fd(fd);
    return fd >= 0;
  }));
  EXPECT_LT(Steady::now() - begun, milliseconds(5000));
}

/// As where a device is opened whose firmware hangs.
TEST(OwnFds, WhoTakesLongToMakeOneHoldsUpForksOnly) {
  HeldElsewhere held;
  ASSERT_TRUE(held.begun());
  std::atomic<bool> made{false};
  std::thread maker([&] {
    close_fd(make_event());
    made = true;
  });
  EXPECT_TRUE(test::until([&] { return made.load(); }));
  held.end();
  maker.join();
}

TEST(OwnFds, AChildOutOfTheMidstOfOneMakesItsOwn) {
  EXPECT_TRUE(in_child([] {
    auto own = std::make_unique<OwnFds>();
    return in_child([&] {
      own.reset();  // its parent's, whose lock is not the child's
      const int fd = make_event();
      return fd >= 0 && in_child([&] { return !is_open(fd); });
    });
  }));
}

TEST(OwnFds, ACloneWaitsForNoThreadOfItsParents) {
  const int ours = make_event();
  HeldElsewhere held;
  ASSERT_TRUE(held.begun());
  EXPECT_TRUE(in_child(
      [&] {
        const int fd = make_event();
        const bool made = is_open(fd);
        close_fd(fd);
        close_fd(ours);  // its parent's, with whom it may share it
        return made && !is_open(fd) && is_open(ours);
      },
      bare_clone));
  close_fd(ours);
}

TEST(OwnFds, AForkOutOfItsOwnHandsGoesOn) {
  OwnFds own;  // as where a signal handler forks
  EXPECT_TRUE(in_child([] { return true; }));
}

TEST(OwnFds, LibuvsAreAmongThem) {
  ASSERT_TRUE(make_uv_streams());  // the first one makes what libuv keeps for all loops
  std::array<int, 2> pair{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  std::array<bool, 1024> before{};
  for (int fd = 0; fd < 1024; ++fd) {
    before[static_cast<size_t>(fd)] = is_open(fd);
  }
  auto streams = make_uv_streams();
  ASSERT_TRUE(streams);
  auto stream = (*streams)->adopt_fd(pair[0], nullptr);
  ASSERT_TRUE(stream);
  EXPECT_TRUE(in_child([&] {
    bool gone = !is_open(pair[0]);
    for (int fd = 0; fd < 1024; ++fd) {
      gone = gone && (before[static_cast<size_t>(fd)] || !is_open(fd));
    }
    return gone;
  }));
  stream->reset();
  streams->reset();
  EXPECT_FALSE(is_open(pair[0]));
  for (int fd = 0; fd < 1024; ++fd) {
    EXPECT_TRUE(before[static_cast<size_t>(fd)] || !is_open(fd)) << fd;
  }
  close(pair[1]);
}

TEST(ProcessLife, IsAnotherInEachFork) {
  const uint64_t mine = process_life();
  const MadeHere made;
  EXPECT_EQ(process_life(), mine);
  for (pid_t (*make)() : std::array<pid_t (*)(), 2>{fork, bare_clone}) {
    EXPECT_TRUE(in_child(
        [&] {
          const uint64_t childs = process_life();
          const MadeHere by_child;
          const bool differs = childs != mine && !made.here() && by_child.here();
          return differs && in_child([&] {
                   return process_life() != childs && process_life() != mine && !by_child.here();
                 });
        },
        make));
  }
  EXPECT_TRUE(made.here());
}

}  // namespace
}  // namespace nccl_ha
