#include "tools/perf/neighbours.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace nccl_ha::tools {

Result<void> Neighbours::start(uint32_t count) {
  const pid_t parent = getpid();
  for (uint32_t i = 0; i < count; ++i) {
    const pid_t pid = fork();
    if (pid < 0) {
      return fail(Errc::system, "cannot fork a busy process for --neighbours", errno);
    }
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      prctl(PR_SET_NAME, "nccl-ha-busy");
      // The parent may have ended before it was asked for its end.
      for (volatile uint64_t work = 0; getppid() == parent;) {
        for (uint32_t step = 0; step < 1'000'000; ++step) {
          work = work + step;
        }
      }
      _exit(0);
    }
    pids_.push_back(pid);
  }
  return {};
}

Neighbours::~Neighbours() {
  for (const pid_t pid : pids_) {
    kill(pid, SIGKILL);
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace nccl_ha::tools
