// The traps of NCCL's contract around the data calls: devices, listening, many connections, ends
// and new beginnings, unloading, other libraries in the process.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {
namespace {

class Lifecycle : public PluginFixture {};
/// Of the last use of the library, which versions without finalize cannot tell.
class Ends : public PluginFixture {};

TEST_P(Lifecycle, NameDevicesAndProperties) {
  EXPECT_STREQ(api().name(), "HA");
  auto count = api().devices();
  ASSERT_TRUE(count);
  ASSERT_GE(*count, 1);
  std::set<std::string> names;
  std::set<uint64_t> guids;
  for (int i = 0; i < *count; ++i) {
    auto device = api().properties(i);
    ASSERT_TRUE(device);
    EXPECT_TRUE(names.insert(device->name).second) << "names are NCCL's keys";
    EXPECT_TRUE(guids.insert(device->guid).second);
    EXPECT_NE(device->guid, 0U);
    EXPECT_GT(device->speed_mbps, 0);
    EXPECT_EQ(device->max_recvs, 8);
    EXPECT_EQ(device->pointer_support, abi::ptr_host);
    EXPECT_GT(device->max_message_bytes, 0U);
    EXPECT_LE(device->max_message_bytes, size_t{1} << 40);
  }
  EXPECT_FALSE(api().properties(*count));
  EXPECT_FALSE(api().properties(-1));
}

TEST_P(Lifecycle, PropertiesFromSeveralThreads) {
  const std::string name = api().properties(0)->name;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        auto device = api().properties(0);
        ASSERT_TRUE(device);
        ASSERT_EQ(device->name, name);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_P(Lifecycle, ListenersThatNobodyConnectsToCloseQuietly) {
  std::vector<void*> listening;
  for (int i = 0; i < 50; ++i) {
    tools::NetHandle handle;
    handle.fill(std::byte{0xEE});
    auto comm = api().listen(0, handle);
    ASSERT_TRUE(comm);
    listening.push_back(*comm);
    for (size_t at = 120; at < 128; ++at) {
      EXPECT_EQ(handle[at], std::byte{0}) << "bytes that are not ours go out as they are";
    }
  }
  for (void* comm : listening) {
    EXPECT_TRUE(api().close_listen(comm));
  }
}

TEST_P(Lifecycle, ListenerClosedBeforeItsConnectionIsAccepted) {
  tools::NetHandle handle{};
  auto listening = api().listen(0, handle);
  ASSERT_TRUE(listening);
  void* send = nullptr;
  bool failed = false;
  ASSERT_TRUE(until([&] {
    auto got = api().connect(0, handle);
    failed = !got;
    send = got ? *got : nullptr;
    return failed || send != nullptr;
  })) << "connect must not wait for accept";
  ASSERT_FALSE(failed);
  EXPECT_TRUE(api().close_listen(*listening));
  // The sender learns that nobody will ever receive.
  std::vector<unsigned char> memory(8);
  auto key = api().register_memory(send, memory.data(), memory.size());
  ASSERT_TRUE(key);
  void* request = nullptr;
  EXPECT_TRUE(until([&] {
    return api().isend(send, memory.data(), 8, 0, *key, &request) == NcclResult::remote_error;
  }));
  EXPECT_TRUE(api().close_send(send));
}

TEST_P(Lifecycle, APeerThatAcceptsAndClosesAtOnceGivesAConnectionWhoseFirstUseFails) {
  for (int round = 0; round < 10; ++round) {
    tools::NetHandle handle{};
    auto listening = api().listen(0, handle);
    ASSERT_TRUE(listening);
    auto begun = api().connect(0, handle);
    ASSERT_TRUE(begun);
    void* send = *begun;
    void* recv = nullptr;
    ASSERT_TRUE(until([&] {
      auto got = api().accept(*listening);
      EXPECT_TRUE(got);
      recv = got ? *got : nullptr;
      return HasFailure() || recv != nullptr;
    }));
    EXPECT_TRUE(api().close_recv(recv));
    EXPECT_TRUE(api().close_listen(*listening));
    // What is to be met is the connector after it has heard of the close and before it is asked.
    static_cast<void>(until([] { return false; }, std::chrono::milliseconds(20)));
    bool failed = false;
    ASSERT_TRUE(until([&] {
      if (send == nullptr) {
        auto got = api().connect(0, handle);
        failed = !got;
        send = got ? *got : nullptr;
      }
      return failed || send != nullptr;
    }));
    ASSERT_FALSE(failed) << "connect() failed in round " << round;
    std::vector<unsigned char> memory(8);
    auto key = api().register_memory(send, memory.data(), memory.size());
    ASSERT_TRUE(key);
    void* request = nullptr;
    EXPECT_TRUE(until([&] {
      return api().isend(send, memory.data(), 8, 0, *key, &request) == NcclResult::remote_error;
    }));
    EXPECT_TRUE(api().deregister_memory(send, *key));
    EXPECT_TRUE(api().close_send(send));
  }
}

TEST_P(Lifecycle, ManyConnectionsFromManyThreads) {
  constexpr int threads_count = 4;
  constexpr int connections_per_thread = 8;
  std::vector<std::thread> threads;
  std::vector<std::vector<Connection>> made(threads_count);
  for (int t = 0; t < threads_count; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < connections_per_thread; ++i) {
        tools::NetHandle handle{};
        auto listening = api().listen(0, handle);
        ASSERT_TRUE(listening);
        Connection c;
        ASSERT_TRUE(until([&] {
          if (c.send == nullptr) {
            auto got = api().connect(0, handle);
            c.send = got ? *got : nullptr;
          }
          if (c.recv == nullptr) {
            auto got = api().accept(*listening);
            c.recv = got ? *got : nullptr;
          }
          return c.send != nullptr && c.recv != nullptr;
        }));
        EXPECT_TRUE(api().close_listen(*listening));
        made[static_cast<size_t>(t)].push_back(c);
      }
      for (const Connection& c : made[static_cast<size_t>(t)]) {
        exchange(c, 10000, static_cast<unsigned char>(t));
      }
      for (const Connection& c : made[static_cast<size_t>(t)]) {
        EXPECT_TRUE(api().close_send(c.send));
        EXPECT_TRUE(api().close_recv(c.recv));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_P(Ends, InitAgainAfterFinalizeAndAfterUnloading) {
  for (int round = 0; round < 3; ++round) {
    Connection c = open_connection();
    exchange(c, 5000, static_cast<unsigned char>(round));
    close_connection(open_.back());
    open_.clear();
    ASSERT_TRUE(api().finalize());
    if (version() >= 11) {
      EXPECT_EQ(plugin_threads(), 0U);
    }
    ASSERT_TRUE(api().init());
  }
  unload();
  load();
  Connection c = open_connection();
  exchange(c, 5000, 9);
}

TEST_P(Ends, UnloadingWithoutClosingAnythingIsSurvived) {
  // In a process of its own that ends without a leak check: what is left open stays the caller's.
  // Nothing has listened yet, so no thread is lost in the fork.
  ASSERT_EQ(plugin_threads(), 0U);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Connection c = open_connection();
    auto buffer = make_buffer(c, 64);
    EXPECT_NE(post_recv(c, *buffer, 0, 64), nullptr);
    tools::NetHandle handle{};
    EXPECT_TRUE(api().listen(0, handle));
    open_.clear();  // leaked on purpose, as an aborted job does
    library_.reset();
    EXPECT_EQ(plugin_threads(), 0U);
    _exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(Lifecycle, LivesBesideAnotherLibuv) {
  void* other = dlopen(NHA_MODULE_DIR "/other_uv_module.so", RTLD_NOW | RTLD_GLOBAL);
  ASSERT_NE(other, nullptr) << dlerror();
  auto ticks = reinterpret_cast<int (*)(int)>(dlsym(other, "other_uv_ticks"));
  ASSERT_NE(ticks, nullptr);
  EXPECT_NE(dlsym(RTLD_DEFAULT, "uv_run"), nullptr) << "the other libuv is not in the process";
  int counted = 0;
  std::thread theirs([&] { EXPECT_TRUE(until([&] { return (counted += ticks(300)) > 50; })); });
  Connection c = open_connection();
  for (int i = 0; i < 20; ++i) {
    exchange(c, 20000, static_cast<unsigned char>(i));
  }
  theirs.join();
  unload();
  dlclose(other);
}

INSTANTIATE_TEST_SUITE_P(Abi, Lifecycle,
                         ::testing::Combine(::testing::Values(abi_of_traps), ::testing::Bool()),
                         instance_name);

INSTANTIATE_TEST_SUITE_P(Abi, Ends,
                         ::testing::Combine(::testing::Values(abi_without_contexts, abi_of_traps),
                                            ::testing::Bool()),
                         instance_name);

class Idle : public PluginFixture {};

TEST_P(Idle, AnIdleProcessSleeps) {
  Connection c = open_connection();
  exchange(c, 1000, 1);
  // The yield phase first, then a while of nothing: measured by the processor time it takes.
  const auto cpu = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  };
  const auto wait = [](int ms) {
    const timespec time{ms / 1000, ms % 1000 * 1000000L};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
  };
  wait(200);
  const double before = cpu();
  wait(2000);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double share = 0.1;  // instrumented wake-ups, on a machine with no core to spare
#else
  constexpr double share = 0.01;
#endif
  EXPECT_LT(cpu() - before, share * 2) << "of two seconds in which nothing happened";
}

// It takes two seconds, and which version of the interface lies idle makes no difference.
INSTANTIATE_TEST_SUITE_P(Abi, Idle, ::testing::Combine(::testing::Values(12), ::testing::Bool()),
                         instance_name);

std::string output_of(const std::string& command) {
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  while (pipe != nullptr && fgets(buffer, sizeof buffer, pipe) != nullptr) {
    out += buffer;
  }
  EXPECT_EQ(pipe == nullptr ? -1 : pclose(pipe), 0) << command;
  return out;
}

std::set<std::string> words_of(const std::string& command) {
  std::istringstream out(output_of(command));
  return {std::istream_iterator<std::string>(out), {}};
}

TEST(Library, ShowsOnlyNcclsSymbols) {
  std::set<std::string> wanted;
  for (int version = 6; version <= 12; ++version) {
    wanted.insert("ncclNetPlugin_v" + std::to_string(version));
  }
  EXPECT_EQ(words_of("nm -D --defined-only --format=posix " NHA_PLUGIN_FILE " | cut -d' ' -f1"),
            wanted);
}

struct BadSetting {
  const char* name;
  const char* value;
  const char* expected;
};

class Settings : public ::testing::TestWithParam<BadSetting> {};

TEST_P(Settings, AWrongOneFailsInitWithAClearError) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv(GetParam().name, GetParam().value, 1);
  auto library = tools::NetLibrary::open(NHA_PLUGIN_FILE, 12);
  ASSERT_TRUE(library);
  auto ready = (*library)->api().init();
  ASSERT_FALSE(ready);
  EXPECT_NE(ready.error().message().find(GetParam().expected), std::string::npos)
      << ready.error().message();
  EXPECT_TRUE((*library)->api().finalize()) << "NCCL finalizes after a failed init too";
  unsetenv(GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(
    Bad, Settings,
    ::testing::Values(BadSetting{"HA_NCCL_PROGRESS_THREADS", "0", "HA_NCCL_PROGRESS_THREADS=0"},
                      BadSetting{"HA_NCCL_DGRAM_FAULTS", "drop=2", "drop=2"},
                      BadSetting{"HA_NCCL_IFNAME", "nosuch0", "no usable network interface"},
                      BadSetting{"HA_NCCL_SOCKET_FAMILY", "ip", "AF_INET or AF_INET6"}));

TEST(Port, InUseIsAClearError) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  setenv("HA_NCCL_LISTEN_PORTS", port.c_str(), 1);
  auto library = tools::NetLibrary::open(NHA_PLUGIN_FILE, 12);
  ASSERT_TRUE(library && (*library)->api().init());
  tools::NetHandle handle{};
  auto listening = (*library)->api().listen(0, handle);
  ASSERT_FALSE(listening);
  EXPECT_NE(listening.error().message().find("HA_NCCL_LISTEN_PORTS=" + port), std::string::npos)
      << listening.error().message();
  EXPECT_TRUE((*library)->api().finalize());
  unsetenv("HA_NCCL_LISTEN_PORTS");
  close(taken);
}

}  // namespace
}  // namespace nccl_ha::test
