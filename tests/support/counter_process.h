// A process of another user that keeps counters, as long as this object lives.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "runtime/telemetry/counter_file.h"

namespace nccl_ha::test {

class CounterProcess {
 public:
  /// Root may be any `user`.  The folder is opened to all.
  CounterProcess(const std::string& folder, uid_t user) {
    if (chmod(folder.c_str(), 01777) != 0 || pipe2(ready_.data(), O_CLOEXEC) != 0 ||
        pipe2(end_.data(), O_CLOEXEC) != 0) {
      return;
    }
    pid_ = fork();
    if (pid_ == 0) {
      close(end_[1]);
      const bool is_user = user == geteuid() || setuid(user) == 0;
      const auto file = is_user ? CounterFile::create({folder, 8, 1, 16}) : nullptr;
      const char made = file == nullptr ? 'n' : 'y';
      char none = 0;
      static_cast<void>(write(ready_[1], &made, 1) == 1 && read(end_[0], &none, 1) == 0);
      _exit(0);
    }
  }
  ~CounterProcess() {
    for (const int fd : {ready_[0], ready_[1], end_[0], end_[1]}) {
      close(fd);
    }
    if (pid_ > 0) {
      waitpid(pid_, nullptr, 0);
    }
  }
  CounterProcess(const CounterProcess&) = delete;
  CounterProcess& operator=(const CounterProcess&) = delete;

  /// Waits until its file is there.
  bool ready() const {
    char made = 'n';
    return pid_ > 0 && read(ready_[0], &made, 1) == 1 && made == 'y';
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  std::array<int, 2> ready_{-1, -1};
  std::array<int, 2> end_{-1, -1};
};

}  // namespace nccl_ha::test
