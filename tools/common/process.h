// Descriptors, and other programs to run.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() { *this = Fd(); }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd reader;
  Fd writer;
};
/// A pipe whose ends are closed on exec.
Result<Pipe> make_pipe();

/// Adds what one read gives to `into`; false at the end of the stream.
bool read_some(int fd, std::string& into);
/// Takes the whole lines out of `text`, without their ends.
std::vector<std::string> take_lines(std::string& text);

/// Ends this process at once, with what stdio holds written (or an error that says that standard
/// output took not all, and a status of 2 at least).  For one that has moved into another
/// process namespace: it cannot start threads any more, which a normal end may want to (a leak
/// checker's does).
[[noreturn]] void end_process(int status);

/// A descriptor that becomes readable when the process ends.
Fd watch_process(pid_t pid);

/// Where a new process runs and what its streams are.
struct Place {
  /// Runs in the child before exec; an error message on failure.
  std::function<Result<void>()> before;
  int in = -1;  ///< -1: /dev/null
  int out = -1;
  int err = -1;
  std::vector<std::pair<int, int>> more;  ///< {descriptor here, descriptor there}
  std::optional<rlimit> open_files;       ///< its limit; none: this process's
};

/// Starts a program that is looked up in PATH.  The child gets SIGTERM's and SIGPIPE's default
/// actions and no signal blocked.
Result<pid_t> start_process(const std::vector<std::string>& command, const Place& place);

/// What a program that ran to its end said.
struct Ended {
  int status = 0;  ///< exit status, or 128 plus the signal
  std::string out;
  std::string err;
};
int status_of(int wait_status);

/// Runs a program to its end with `input` on its standard input.
Result<Ended> run_process(const std::vector<std::string>& command, const std::string& input = "",
                          const std::function<Result<void>()>& before = {});

/// The same, and an error with the program's own words unless it ends with 0.  Gives its output.
Result<std::string> must_run(const std::vector<std::string>& command, const std::string& input = "",
                             const std::function<Result<void>()>& before = {});

}  // namespace nccl_ha::tools
