#include "tools/lab/containment.h"

#include <errno.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

namespace nccl_ha::tools::lab {
namespace {

Result<void> map_user(uid_t user, gid_t group) {
  const auto put = [](const char* file, const std::string& text) {
    std::ofstream out(file);
    out << text << std::flush;
    return out.good();
  };
  if (!put("/proc/self/setgroups", "deny") ||
      !put("/proc/self/uid_map", fmt::format("0 {} 1", user)) ||
      !put("/proc/self/gid_map", fmt::format("0 {} 1", group))) {
    return fail(Errc::system, "cannot map this user into its own user namespace", errno);
  }
  return {};
}

}  // namespace

Containment::~Containment() {
  if (first_ > 0 && lifeline_) {
    lifeline_.reset();
    waitpid(first_, nullptr, 0);
  }
}

Result<void> Containment::enter() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  const int flags = CLONE_NEWNET | CLONE_NEWPID | (user == 0 ? 0 : CLONE_NEWUSER);
  if (unshare(flags) != 0) {
    return fail(Errc::system,
                "cannot make namespaces; run as root, or where the kernel lets users make them "
                "(sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces > 0)",
                errno);
  }
  if (user != 0) {
    if (auto mapped = map_user(user, group); !mapped) {
      return mapped;
    }
  }
  auto pipe = make_pipe();
  if (!pipe) {
    return pipe.error();
  }
  first_ = fork();
  if (first_ < 0) {
    return fail(Errc::system, "cannot start the lab's first process", errno);
  }
  if (first_ == 0) {
    // The first process of a namespace inherits its orphans; nobody asks how they ended.
    signal(SIGCHLD, SIG_IGN);
    const int lifeline = pipe->reader.release();
    dup2(lifeline, 0);
    close_range(1, ~0U, 0);
    char byte;
    while (read(0, &byte, 1) < 0 && errno == EINTR) {
    }
    _exit(0);
  }
  lifeline_ = std::move(pipe->writer);
  return {};
}

}  // namespace nccl_ha::tools::lab
