// A child process with a network of its own, which ends with it.
#pragma once

#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

#include "tests/support/until.h"

namespace nccl_ha::test {

/// This process goes into new namespaces of those kinds (unshare(2)), where it may do everything in
/// them; without the right to make them, as root of a user namespace.
inline bool enter_namespaces(int kinds) {
  const std::string user = std::to_string(geteuid());
  const std::string group = std::to_string(getegid());
  if (unshare(kinds) == 0) {
    return true;
  }
  if (unshare(CLONE_NEWUSER | kinds) != 0) {
    return false;
  }
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " + user + " 1";
  std::ofstream("/proc/self/gid_map") << "0 " + group + " 1";
  return geteuid() == 0;
}

/// Runs `body` in a child with a network namespace of its own, where expectations may be used; how
/// the child ends, 0 if all of them held.  Needs the right to make namespaces, as the build finds
/// out for *_netns_test.cpp.
inline int in_own_network(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(110);
    EXPECT_TRUE(enter_namespaces(CLONE_NEWNET));
    if (!testing::Test::HasFailure()) {
      body();
    }
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

inline bool ip(const std::string& command) {
  return std::system(("PATH=$PATH:/usr/sbin:/sbin ip " + command).c_str()) == 0;
}

/// Whether the interface works, sooner or later: the kernel takes up to a second to notice what was
/// done at the other end of a cable.
inline bool link_becomes(const std::string& interface, bool up) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  const bool done = until([&] {
    return ioctl(fd, SIOCGIFFLAGS, &request) == 0 && ((request.ifr_flags & IFF_RUNNING) != 0) == up;
  });
  close(fd);
  return done;
}

/// A cable with a link; its other end is called NAME-far.
inline bool lay_cable(const std::string& name) {
  return ip("link add " + name + " type veth peer name " + name + "-far") &&
         ip("link set " + name + " up") && ip("link set " + name + "-far up") &&
         link_becomes(name, true);
}

}  // namespace nccl_ha::test
