// Something that may end the process, or changes it for good, in a fork.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace nccl_ha::test {

/// How a fork ends in which `body` says whether all is well: 0 if it is.
inline int in_fork(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace nccl_ha::test
