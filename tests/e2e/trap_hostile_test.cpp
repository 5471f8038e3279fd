// Unknown peers, garbage and dead peers against the real library.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "actors/control.h"
#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {
namespace {

class Hostile : public PluginFixture {
 protected:
  /// Connects a real pair to a listener that unknown peers have visited.
  void real_peers_still_connect(void* listening, tools::NetHandle& handle) {
    Connection c;
    bool failed = false;
    ASSERT_TRUE(until([&] {
      if (c.send == nullptr) {
        auto got = api().connect(0, handle);
        failed = failed || !got;
        c.send = got ? *got : nullptr;
      }
      if (c.recv == nullptr) {
        auto got = api().accept(listening);
        failed = failed || !got;
        c.recv = got ? *got : nullptr;
      }
      return failed || (c.send != nullptr && c.recv != nullptr);
    }));
    ASSERT_FALSE(failed);
    open_.push_back(c);
    exchange(c, 1000, 3);
  }

  /// Turns an inline engine while the unknown peer waits; true when the unknown peer's socket was
  /// closed.
  bool turned_away(int fd, void* listening) {
    return until([&] {
      auto accepted = api().accept(listening);
      EXPECT_TRUE(accepted) << accepted.error().message();
      EXPECT_EQ(accepted ? *accepted : nullptr, nullptr) << "an unknown peer was accepted";
      char byte = 0;
      const ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    });
  }
};

std::vector<char> as_chars(const std::vector<std::byte>& bytes) {
  std::vector<char> out(bytes.size());
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

std::vector<char> wrong_hello() {
  Hello hello;
  hello.nonce = 12345;  // not the listener's
  return as_chars(encode(hello));
}

TEST_P(Hostile, UnknownPeersAreRejectedAndTheRealPeerStillConnects) {
  const std::string http = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::vector<char> wrong = wrong_hello();
  std::vector<std::vector<char>> visits{
      std::vector<char>(http.begin(), http.end()),
      wrong,
      std::vector<char>(100000, 'A'),
      // What only the peers of a connection that is ready say.
      as_chars(encode_retire()),
      as_chars(encode_confirm()),
      as_chars(encode(ControlType::rejoin, RejoinCall{Secret::heard(1), {}})),
  };
  tools::NetHandle handle{};
  auto listening = api().listen(0, handle);
  ASSERT_TRUE(listening);
  for (const auto& bytes : visits) {
    const int fd = connect_tcp(handle_port(handle));
    ASSERT_GE(fd, 0);
    static_cast<void>(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL));
    EXPECT_TRUE(turned_away(fd, *listening)) << bytes.size() << " bytes";
    close(fd);
  }
  // Half a header, and then silence: it holds a place, but not the door.
  const int silent = connect_tcp(handle_port(handle));
  ASSERT_GE(silent, 0);
  ASSERT_EQ(send(silent, wrong.data(), 5, MSG_NOSIGNAL), 5);
  const int mute = connect_tcp(handle_port(handle));
  ASSERT_GE(mute, 0);
  real_peers_still_connect(*listening, handle);
  EXPECT_TRUE(api().close_listen(*listening));
  close(silent);
  close(mute);
}

TEST_P(Hostile, ACrowdAtTheDoorKeepsNobodyOut) {
  tools::NetHandle handle{};
  auto listening = api().listen(0, handle);
  ASSERT_TRUE(listening);
  constexpr size_t crowd_size = 400;
  constexpr size_t at_the_door = 256;
  std::vector<int> crowd;
  for (size_t i = 0; i < crowd_size; ++i) {
    crowd.push_back(connect_tcp(handle_port(handle)));
    ASSERT_GE(crowd.back(), 0);
  }
  // Those who came first have given way to those who came later.
  EXPECT_TRUE(turned_away(crowd[crowd_size - at_the_door - 1], *listening));
  char byte = 0;
  EXPECT_LT(recv(crowd.back(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(errno, EAGAIN) << "the door is not full";
  // More come all the time.
  std::atomic<bool> ends{false};
  std::thread more([&] {
    for (size_t i = 0; !ends.load(); i = (i + 1) % crowd.size()) {
      close(crowd[i]);
      crowd[i] = connect_tcp(handle_port(handle));
      sched_yield();
    }
  });
  real_peers_still_connect(*listening, handle);
  ends.store(true);
  more.join();
  for (const int fd : crowd) {
    close(fd);
  }
  EXPECT_TRUE(api().close_listen(*listening));
}

TEST_P(Hostile, ASilentStrangerIsTurnedAwayInTime) {
  tools::NetHandle handle{};
  auto listening = api().listen(0, handle);
  ASSERT_TRUE(listening);
  const int fd = connect_tcp(handle_port(handle));
  ASSERT_GE(fd, 0);
  EXPECT_TRUE(turned_away(fd, *listening)) << "HA_NCCL_HANDSHAKE_TIMEOUT_MS is 5000";
  close(fd);
  EXPECT_TRUE(api().close_listen(*listening));
}

TEST_P(Hostile, ConnectToNobodyFailsInTime) {
  tools::NetHandle handle{};
  auto listening = api().listen(0, handle);
  ASSERT_TRUE(listening);
  EXPECT_TRUE(api().close_listen(*listening));
  ASSERT_TRUE(until([&] {
    const int fd = connect_tcp(handle_port(handle));
    if (fd >= 0) {
      close(fd);
    }
    return fd < 0;
  })) << "port still open";
  bool failed = false;
  EXPECT_TRUE(until([&] {
    auto got = api().connect(0, handle);
    failed = !got;
    return failed || *got != nullptr;
  }));
  EXPECT_TRUE(failed);
}

TEST_P(Hostile, AForeignHandleIsRefused) {
  tools::NetHandle handle{};
  EXPECT_FALSE(api().connect(0, handle));
  handle.fill(std::byte{0xAB});
  EXPECT_FALSE(api().connect(0, handle));
}

TEST_P(Hostile, GarbageOnTheDataPortsHarmsNobody) {
  Connection c = open_connection();
  const auto ports = own_udp_ports();
  ASSERT_GE(ports.size(), 2U) << "command and data channel";
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  std::mt19937 random(5);
  size_t sent = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<unsigned char> bytes(random() % 2000);
    for (auto& b : bytes) {
      b = static_cast<unsigned char>(random());
    }
    if (bytes.size() > 3 && i % 2 == 0) {  // right magic and type, wrong everything else
      bytes[0] = 0x4E;
      bytes[1] = 0x48;
      bytes[2] = static_cast<unsigned char>(1 + random() % 7);
      bytes[3] = 0;
    }
    for (const uint16_t port : ports) {
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(port);
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      const ssize_t left =
          sendto(fd, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof to);
      sent += left >= 0 ? 1 : 0;
    }
    if (i % 300 == 0) {
      exchange(c, 30000, static_cast<unsigned char>(i));
    }
  }
  close(fd);
  EXPECT_GT(sent, 3000U) << "of two packets or more a time";
  exchange(c, 200000, 77);
}

// Unknown peers never get as far as the interface, so one version of it will do.
INSTANTIATE_TEST_SUITE_P(Abi, Hostile, ::testing::Combine(::testing::Values(12), ::testing::Bool()),
                         instance_name);

/// What parent and child share in the test below.
struct Shared {
  tools::NetHandle handle;
  std::atomic<int> handle_ready{0};
  std::atomic<uint64_t> received{0};  ///< messages that the victim has taken
};

class DeadPeer : public ::testing::TestWithParam<bool> {};

/// The child receives until it is killed.
[[noreturn]] void victim(Shared* shared) {
  auto library = tools::NetLibrary::open(NHA_PLUGIN_FILE, 11);
  if (!library || !(*library)->api().init()) {
    _exit(1);
  }
  auto& api = (*library)->api();
  auto listening = api.listen(0, shared->handle);
  shared->handle_ready.store(1);
  void* comm = nullptr;
  until([&] {
    auto got = api.accept(*listening);
    comm = got ? *got : nullptr;
    return comm != nullptr;
  });
  std::vector<unsigned char> memory(1 << 20);
  auto key = api.register_memory(comm, memory.data(), memory.size());
  for (;;) {
    void* data = memory.data();
    size_t bytes = memory.size();
    int tag = 0;
    void* request = nullptr;
    static_cast<void>(api.irecv(comm, 1, &data, &bytes, &tag, &*key, &request));
    int done = 0;
    while (request != nullptr && done == 0) {
      static_cast<void>(api.test(request, &done, nullptr));
      sched_yield();
    }
    shared->received.fetch_add(1);
  }
}

TEST_P(DeadPeer, AKilledReceiverEndsTheSendersRequestsWithAnErrorInTime) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("HA_NCCL_USE_PROGRESS_THREAD", GetParam() ? "1" : "0", 1);
  auto* shared =
      new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          Shared;
  const pid_t child = fork();
  if (child == 0) {
    victim(shared);
  }
  ASSERT_TRUE(until([&] { return shared->handle_ready.load() != 0; }));
  auto library = tools::NetLibrary::open(NHA_PLUGIN_FILE, 11);
  ASSERT_TRUE(library && (*library)->api().init());
  auto& api = (*library)->api();
  void* comm = nullptr;
  ASSERT_TRUE(until([&] {
    auto got = api.connect(0, shared->handle);
    comm = got ? *got : nullptr;
    return comm != nullptr;
  }));
  std::vector<unsigned char> memory(1 << 20);
  auto key = api.register_memory(comm, memory.data(), memory.size());
  ASSERT_TRUE(key);
  bool killed = false;
  NcclResult result = NcclResult::success;
  std::chrono::steady_clock::time_point killed_at;
  ASSERT_TRUE(until([&] {
    void* request = nullptr;
    result = api.isend(comm, memory.data(), memory.size(), 0, *key, &request);
    int done = 0;
    while (result == NcclResult::success && request != nullptr && done == 0) {
      if (!killed && shared->received.load() >= 20) {
        // A request is open and messages have been flowing: now.
        kill(child, SIGKILL);
        killed = true;
        killed_at = std::chrono::steady_clock::now();
      }
      result = api.test(request, &done, nullptr);
      sched_yield();
    }
    return result != NcclResult::success;
  })) << "no error within the time";
  EXPECT_TRUE(killed) << "the fault never happened";
  EXPECT_EQ(result, NcclResult::remote_error);
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, std::chrono::seconds(15));
  void* request = nullptr;
  EXPECT_EQ(api.isend(comm, memory.data(), 8, 0, *key, &request), NcclResult::remote_error);
  EXPECT_TRUE(api.close_send(comm));
  EXPECT_TRUE(api.finalize());
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
}

INSTANTIATE_TEST_SUITE_P(Modes, DeadPeer, ::testing::Bool(), [](const auto& instance) {
  return std::string(instance.param ? "threads" : "inline");
});

}  // namespace
}  // namespace nccl_ha::test
