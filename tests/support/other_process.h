// The other process of a test that has a copy of the library in each.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>

#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {

/// The other process.  Forked while this one has no thread and no library of ours.
class Child {
 public:
  /// `role` gets a socket to the parent and returns the exit status.
  explicit Child(const std::function<int(int fd)>& role) {
    std::array<int, 2> pair{-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(pair[0]);
      alarm(120);  // never outlives its test for long
      _exit(role(pair[1]));
    }
    close(pair[1]);
    fd_ = pair[0];
  }
  ~Child() {
    if (pid_ > 0) {
      signal_child(SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(fd_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int fd() const { return fd_; }
  pid_t pid() const { return pid_; }
  void signal_child(int number) const { kill(pid_, number); }
  int wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
};

inline std::unique_ptr<tools::NetLibrary> load_library(int version) {
  auto opened = tools::NetLibrary::open(plugin_path, version);
  if (!opened || !(*opened)->api().init()) {
    return nullptr;
  }
  return std::move(*opened);
}

}  // namespace nccl_ha::test
