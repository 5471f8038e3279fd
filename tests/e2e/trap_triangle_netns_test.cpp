// Three hosts in a triangle, each pair on a subnet of its own and no routes between: whatever
// device NCCL asks for, connect must find the one interface that leads to the peer.  The hosts are
// network namespaces held by processes, so that nothing is left behind.
//
// Needs the right to make network namespaces; the build leaves this file out, and says so, where
// that is not allowed.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "tests/support/own_network.h"
#include "tests/support/pipe_io.h"
#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {
namespace {

constexpr size_t hosts = 3;
constexpr size_t bytes = 400000;

bool shell(const std::string& command) { return std::system(command.c_str()) == 0; }

/// The subnet 10.77.N.0/24 that two hosts share.
std::string subnet(size_t a, size_t b) { return "10.77." + std::to_string(a + b); }
std::string interface_to(size_t peer) { return "tri" + std::to_string(peer); }

/// Sockets between every two hosts, for the handles.
using Wires = std::array<std::array<int, hosts>, hosts>;

struct HostEnds {
  tools::NetHandle handle{};  ///< the peer's
  void* listening = nullptr;
  void* send = nullptr;
  void* recv = nullptr;
};

bool connect_host(tools::NetApi& api, size_t self, int device, const Wires& wires,
                  std::array<HostEnds, hosts>& ends) {
  for (size_t peer = 0; peer < hosts; ++peer) {
    if (peer == self) {
      continue;
    }
    tools::NetHandle handle{};
    auto listening = api.listen(device, handle);
    if (!listening || !write_all(wires[self][peer], handle.data(), handle.size())) {
      return false;
    }
    ends[peer].listening = *listening;
  }
  for (size_t peer = 0; peer < hosts; ++peer) {
    if (peer != self &&
        !read_all(wires[self][peer], ends[peer].handle.data(), ends[peer].handle.size())) {
      return false;
    }
  }
  bool failed = false;
  const bool ended = until([&] {
    bool all = true;
    for (size_t peer = 0; peer < hosts; ++peer) {
      HostEnds& end = ends[peer];
      if (peer != self && end.send == nullptr) {
        auto got = api.connect(device, end.handle);
        failed = failed || !got;
        end.send = got ? *got : nullptr;
      }
      if (peer != self && end.recv == nullptr) {
        auto got = api.accept(end.listening);
        failed = failed || !got;
        end.recv = got ? *got : nullptr;
      }
      all = all && (peer == self || (end.send != nullptr && end.recv != nullptr));
    }
    return failed || all;
  });
  return ended && !failed;
}

/// Sends `bytes` to one peer and receives as many from it; both are filled with the sender's
/// number.
bool swap_with(tools::NetApi& api, const HostEnds& end, size_t self, size_t peer) {
  std::vector<unsigned char> out(bytes, static_cast<unsigned char>(10 + self));
  std::vector<unsigned char> in(bytes);
  auto out_key = api.register_memory(end.send, out.data(), bytes);
  auto in_key = api.register_memory(end.recv, in.data(), bytes);
  if (!out_key || !in_key) {
    return false;
  }
  std::array<void*, 2> requests{};
  std::array<int, 2> done{};
  void* data = in.data();
  size_t length = bytes;
  int tag = 0;
  NcclResult result = NcclResult::success;
  const bool ended = until([&] {
    if (requests[0] == nullptr) {
      result = api.irecv(end.recv, 1, &data, &length, &tag, &*in_key, &requests[0]);
    }
    if (result == NcclResult::success && requests[1] == nullptr) {
      result = api.isend(end.send, out.data(), bytes, 0, *out_key, &requests[1]);
    }
    for (size_t i = 0; i < 2; ++i) {
      if (result == NcclResult::success && requests[i] != nullptr && done[i] == 0) {
        result = api.test(requests[i], &done[i], nullptr);
      }
    }
    return result != NcclResult::success || (done[0] != 0 && done[1] != 0);
  });
  return ended && result == NcclResult::success && done[0] != 0 &&
         in == std::vector<unsigned char>(bytes, static_cast<unsigned char>(10 + peer));
}

/// One host; its exit status says how far it came.
int host_main(size_t self, int control, const Wires& wires) {
  alarm(100);
  char word = 0;
  if (unshare(CLONE_NEWNET) != 0 || !write_all(control, "n", 1) || !read_all(control, &word, 1)) {
    return 2;
  }
  // The cables have been plugged in; no default route, no forwarding.
  if (!shell("ip link set lo up")) {
    return 3;
  }
  for (size_t peer = 0; peer < hosts; ++peer) {
    if (peer != self &&
        !shell("ip addr add " + subnet(self, peer) + "." + std::to_string(self + 1) + "/24 dev " +
               interface_to(peer) + " && ip link set " + interface_to(peer) + " up")) {
      return 3;
    }
  }
  if (!write_all(control, "u", 1) || !read_all(control, &word, 1)) {
    return 4;
  }
  for (size_t peer = 0; peer < hosts; ++peer) {
    if (peer != self && !link_becomes(interface_to(peer), true)) {
      return 4;
    }
  }
  auto library = tools::NetLibrary::open(plugin_path, 12);
  if (!library || !(*library)->api().init()) {
    return 5;
  }
  tools::NetApi& api = (*library)->api();
  auto devices = api.devices();
  if (!devices || *devices != 2) {
    return 6;
  }
  // Every device in turn: NCCL picks by PCI distance and knows nothing of subnets.
  for (int device = 0; device < *devices; ++device) {
    std::array<HostEnds, hosts> ends{};
    if (!connect_host(api, self, device, wires, ends)) {
      return 7;
    }
    // In the order of the pairs (0,1), (0,2), (1,2), so that nobody waits in a circle.
    for (size_t a = 0; a < hosts; ++a) {
      for (size_t b = a + 1; b < hosts; ++b) {
        const size_t peer = a == self ? b : a;
        if ((a == self || b == self) && !swap_with(api, ends[peer], self, peer)) {
          return 8;
        }
      }
    }
    for (size_t peer = 0; peer < hosts; ++peer) {
      if (peer != self && (!api.close_listen(ends[peer].listening) ||
                           !api.close_send(ends[peer].send) || !api.close_recv(ends[peer].recv))) {
        return 9;
      }
    }
  }
  return api.finalize() ? 0 : 10;
}

/// Runs the three hosts; the parent may be in a user namespace already.
int run_triangle() {
  Wires wires{};
  for (size_t a = 0; a < hosts; ++a) {
    for (size_t b = a + 1; b < hosts; ++b) {
      std::array<int, 2> pair{};
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
        return 20;
      }
      wires[a][b] = pair[0];
      wires[b][a] = pair[1];
    }
  }
  std::array<pid_t, hosts> processes{};
  std::array<int, hosts> controls{};
  for (size_t host = 0; host < hosts; ++host) {
    std::array<int, 2> pair{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
      return 20;
    }
    controls[host] = pair[0];
    processes[host] = fork();
    if (processes[host] == 0) {
      _exit(host_main(host, pair[1], wires));
    }
    close(pair[1]);
  }
  const auto all_say = [&] {
    bool all = true;
    char word = 0;
    for (const int control : controls) {
      all = all && read_all(control, &word, 1);
    }
    return all;
  };
  const auto tell_all = [&] {
    for (const int control : controls) {
      static_cast<void>(write_all(control, "g", 1));
    }
  };
  bool wired = all_say();
  for (size_t a = 0; a < hosts; ++a) {
    for (size_t b = a + 1; b < hosts; ++b) {
      wired = wired && shell("ip link add " + interface_to(b) + " netns " +
                             std::to_string(processes[a]) + " type veth peer name " +
                             interface_to(a) + " netns " + std::to_string(processes[b]));
    }
  }
  tell_all();
  wired = all_say() && wired;
  tell_all();
  int result = wired ? 0 : 21;
  for (size_t host = 0; host < hosts; ++host) {
    int status = 0;
    waitpid(processes[host], &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
    if (code != 0) {
      std::fprintf(stderr, "host %zu ended with %d\n", host, code);
      result = result == 0 ? code : result;
    }
  }
  return result;
}

class Triangle : public ::testing::TestWithParam<bool> {};

TEST_P(Triangle, EachPairFindsItsOwnSubnetFromWhateverDevice) {
  setenv("NCCL_SOCKET_IFNAME", "tri", 1);
  setenv("HA_NCCL_USE_PROGRESS_THREAD", GetParam() ? "1" : "0", 1);
  ASSERT_EQ(plugin_threads(), 0U);
  // A process of its own, since there is no way back out of a user namespace.
  const pid_t supervisor = fork();
  if (supervisor == 0) {
    alarm(150);
    // As root each host has a namespace anyway.
    _exit(geteuid() == 0 || enter_namespaces(CLONE_NEWNET) ? run_triangle() : 22);
  }
  int status = 0;
  ASSERT_EQ(waitpid(supervisor, &status, 0), supervisor);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0)
      << "2..4 and 20..22: the hosts could not be set up; 6: devices; 7: connections; 8: data";
}

INSTANTIATE_TEST_SUITE_P(Modes, Triangle, ::testing::Bool(), [](const auto& instance) {
  return std::string(instance.param ? "threads" : "inline");
});

}  // namespace
}  // namespace nccl_ha::test
