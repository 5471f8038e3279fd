// The plugin (it is this module's own dependency) in a process that forks all the time, as a
// program does that starts helpers: the children do what children do, one thing after the other.
//
// At the end it says on stderr how many ended as they should, or that one did not.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

namespace nccl_ha::tests {
namespace {

constexpr unsigned child_limit_s = 20;  ///< SIGALRM ends a child that hangs
constexpr int between_ms = 10;

[[noreturn]] void live_as_a_child(unsigned kind) {
  alarm(child_limit_s);
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(nowhere, STDOUT_FILENO);  // what the parent has not written yet is the parent's
  switch (kind % 4) {
    case 0:
      exit(0);
    case 1:
      _exit(0);
    case 2:
      execl("/bin/true", "true", nullptr);
      _exit(1);
    default:
      poll(nullptr, 0, 300);  // longer than a silence that counts
      exit(0);
  }
}

class Forking {
 public:
  Forking() : thread_([this] { run(); }) {}
  ~Forking() {
    if (getpid() != process_) {
      new (&thread_) std::thread();  // it is not here
      return;
    }
    ends_.store(true);
    thread_.join();
    std::fprintf(stderr, "forking_net: %u children ended well, %u did not\n", good_, bad_);
  }
  Forking(const Forking&) = delete;
  Forking& operator=(const Forking&) = delete;

 private:
  void run() {
    for (unsigned kind = 0; !ends_.load(); ++kind) {
      const pid_t child = fork();
      if (child == 0) {
        live_as_a_child(kind);
      }
      int status = -1;
      const bool good = child > 0 && waitpid(child, &status, 0) == child && status == 0;
      ++(good ? good_ : bad_);
      poll(nullptr, 0, between_ms);
    }
  }

  const pid_t process_ = getpid();
  std::atomic<bool> ends_{false};
  unsigned good_ = 0;
  unsigned bad_ = 0;
  std::thread thread_;
};

const Forking forking;

}  // namespace
}  // namespace nccl_ha::tests
