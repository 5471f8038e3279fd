// A process that uses the plugin forks, as Python programs do: the child owns nothing of its
// parent's, whatever it does, and the parent's job goes on.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/other_process.h"
#include "tests/support/pipe_io.h"
#include "tests/support/plugin_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/until.h"

namespace nccl_ha::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Steady = std::chrono::steady_clock;

constexpr unsigned child_limit_s = 30;  ///< SIGALRM ends a child that hangs

/// Each descriptor with what it is.
std::set<std::string> open_descriptors() {
  std::set<std::string> found;
  for (int fd = 0; fd < 1024; ++fd) {
    std::array<char, 256> target{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), target.data(), target.size() - 1) > 0) {
      found.insert(std::to_string(fd) + " " + target.data());
    }
  }
  return found;
}

size_t mappings_of(const std::string& part) {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find(part) != std::string::npos ? 1 : 0;
  }
  return count;
}

/// What fork() does but for the C library's part, as some runtimes and sandboxes do.
pid_t bare_clone() { return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)); }

class Forks : public PluginFixture {
 protected:
  void SetUp() override {
    setenv("HA_NCCL_COUNTERS_DIR", temporary_.path().c_str(), 1);
    setenv("HA_NCCL_FABRIC", fabric(), 1);
    prepare();
    before_ = open_descriptors();
    PluginFixture::SetUp();
    connection_ = open_connection();
    exchange(connection_, 1000, 1);
  }
  void TearDown() override {
    if (library_) {
      carry_on();
    }
    PluginFixture::TearDown();
    EXPECT_EQ(new_descriptors(), std::set<std::string>());
    unsetenv("HA_NCCL_COUNTERS_DIR");
    unsetenv("HA_NCCL_FABRIC");
  }

  virtual const char* fabric() const { return "datagram"; }
  virtual void prepare() {}
  /// Not the plugin's, whoever opened it.
  virtual bool is_others(int fd) const {
    static_cast<void>(fd);
    return false;
  }
  std::set<std::string> new_descriptors() const {
    std::set<std::string> found = open_descriptors();
    std::erase_if(found, [&](const std::string& one) {
      return before_.contains(one) || is_others(std::stoi(one));
    });
    return found;
  }

  /// The job, for as long as a child lives, and a while longer.
  void carry_on(pid_t child = -1) {
    int status = -1;
    bool ended = child < 0;
    const auto begun = Steady::now();
    for (unsigned char round = 0; !HasFailure(); ++round) {
      exchange(connection_, 100'000, round);
      rounds_->fetch_add(1);
      ended = ended || waitpid(child, &status, WNOHANG) == child;
      if (ended && round >= 3) {
        break;
      }
      ASSERT_LT(Steady::now() - begun, seconds(2 * child_limit_s)) << "the child does not end";
    }
    if (child >= 0) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "the child ended with " << status;
    }
  }

  /// The job goes on beside a child that runs `body` and ends as that does, else by exit().
  template <class Body>
  void beside(Body&& body, pid_t (*make)() = fork) {
    const pid_t child = make();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(child_limit_s);
      body();
      std::exit(HasFailure() ? 1 : 0);
    }
    carry_on(child);
  }

  /// Every entry point, in a child.
  void expect_refusals() {
    constexpr NcclResult refused = NcclResult::invalid_usage;
    EXPECT_FALSE(api().init());
    EXPECT_FALSE(api().devices());
    EXPECT_FALSE(api().properties(0));
    tools::NetHandle handle{};
    EXPECT_FALSE(api().listen(0, handle));
    EXPECT_FALSE(api().connect(0, handle));
    EXPECT_FALSE(api().accept(connection_.recv));
    std::array<unsigned char, 8> memory{};
    EXPECT_FALSE(api().register_memory(connection_.send, memory.data(), memory.size()));
    EXPECT_FALSE(api().deregister_memory(connection_.send, memory.data()));
    void* request = memory.data();
    void* data = memory.data();
    void* key = memory.data();
    const size_t bytes = memory.size();
    const int tag = 0;
    EXPECT_EQ(api().isend(connection_.send, data, bytes, tag, key, &request), refused);
    EXPECT_EQ(request, nullptr);
    request = memory.data();
    EXPECT_EQ(api().irecv(connection_.recv, 1, &data, &bytes, &tag, &key, &request), refused);
    EXPECT_EQ(request, nullptr);
    int size = 8;
    EXPECT_EQ(api().iflush(connection_.recv, 1, &data, &size, &key, &request), refused);
    int done = 77;
    EXPECT_EQ(api().test(memory.data(), &done, nullptr), refused);
    EXPECT_EQ(done, 0);
    EXPECT_FALSE(api().close_send(connection_.send));
    EXPECT_FALSE(api().close_recv(connection_.recv));
    EXPECT_FALSE(api().close_listen(connection_.recv));
    EXPECT_FALSE(api().finalize());
  }

  tests::TemporaryFolder temporary_{"/dev/shm"};
  std::set<std::string> before_;
  Connection connection_;
  /// Of the job, in memory that children share.
  std::atomic<unsigned>* const rounds_ =
      new (mmap(nullptr, sizeof(std::atomic<unsigned>), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<unsigned>(0);
};

TEST_P(Forks, TheChildExits) {
  beside([] {});
}

TEST_P(Forks, TheChildEndsAtOnce) {
  beside([] { _exit(0); });
}

TEST_P(Forks, TheChildOfABareCloneExits) {
  beside([] {}, bare_clone);
}

TEST_P(Forks, TheChildBecomesAnotherProgramThatInheritsNothing) {
  beside([] {
    execl("/bin/sh", "sh", "-c",
          R"(f=$(ls -l /proc/self/fd) && ! echo "$f" | grep -E 'socket:|\[event|counters' >&2)",
          nullptr);
    _exit(127);
  });
}

TEST_P(Forks, TheChildUnloadsTheLibraryAndUsesItAnew) {
  beside([&] {
    open_.clear();  // the parent's
    library_.reset();
    EXPECT_FALSE(plugin_mapped());
    load();
    exchange(open_connection(), 50'000, 5);
    unload();
  });
}

TEST_P(Forks, TheChildForksToo) {
  beside([&] {
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      expect_refusals();
      std::exit(HasFailure() ? 1 : 0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(grandchild, &status, 0), grandchild);
    EXPECT_EQ(status, 0);
  });
}

TEST_P(Forks, TheChildLivesOnWithNothingOfItsParents) {
  EXPECT_GT(new_descriptors().size(), 5U);
  EXPECT_EQ(mappings_of(temporary_.path()), 1U) << "the counters";
  beside([&] {
    EXPECT_EQ(new_descriptors(), std::set<std::string>());
    EXPECT_EQ(mappings_of(temporary_.path()), 0U);
    const unsigned begun = rounds_->load();
    EXPECT_TRUE(until([&] { return rounds_->load() > begun + 20; })) << "the job stands still";
  });
}

TEST_P(Forks, EveryCallOfTheChildIsRefusedAndOneLineSaysWhy) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  beside([&] {
    dup2(ends[1], STDERR_FILENO);
    expect_refusals();
  });
  close(ends[1]);
  std::array<char, 4096> text{};
  const ssize_t got = read(ends[0], text.data(), text.size());
  close(ends[0]);
  const std::string said(text.data(), got > 0 ? static_cast<size_t>(got) : 0);
  EXPECT_NE(said.find("nccl-ha: error: init: process "), std::string::npos) << said;
  EXPECT_NE(said.find("Fork before NCCL is initialised"), std::string::npos) << said;
  EXPECT_EQ(said.find("nccl-ha:"), said.rfind("nccl-ha:")) << "more than once: " << said;
}

TEST_P(Forks, EveryCallOfABareCloneIsRefused) {
  beside([&] { expect_refusals(); }, bare_clone);
}

TEST_P(Forks, NoLockThatAThreadHeldHoldsUpAChild) {
  // Threads that take each lock of the control path all the time, so that forks meet them held.
  std::atomic<bool> ends{false};
  std::atomic<size_t> rounds{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      std::array<unsigned char, 64> memory{};
      while (!ends.load()) {
        EXPECT_TRUE(api().properties(0));
        auto key = api().register_memory(connection_.send, memory.data(), memory.size());
        EXPECT_TRUE(key && api().deregister_memory(connection_.send, *key));
        if (rounds.fetch_add(1) % 256 == 0) {
          tools::NetHandle handle{};
          auto listening = api().listen(0, handle);
          EXPECT_TRUE(listening && api().close_listen(*listening));
        }
      }
    });
  }
  for (int round = 0; round < 20 && !HasFailure(); ++round) {
    const pid_t child = round % 2 == 0 ? fork() : bare_clone();
    if (child == 0) {
      alarm(child_limit_s);
      close(STDERR_FILENO);  // one line of each would be much
      void* request = nullptr;
      int done = 0;
      const bool refused = api().test(&request, &done, nullptr) == NcclResult::invalid_usage &&
                           api().isend(connection_.send, &request, 8, 0, &request, &request) ==
                               NcclResult::invalid_usage;
      if (round % 2 == 0) {
        library_.reset();  // after a bare clone nobody looks after the locks of malloc()
      }
      _exit(refused ? 0 : 1);  // the test program's own destructors know its other threads
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "in round " << round;
  }
  ends.store(true);
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_GT(rounds.load(), 256U);
}

TEST_P(Forks, EveryDescriptorClosesOnExec) {
  const std::set<std::string> opened = new_descriptors();
  EXPECT_GT(opened.size(), 5U);
  for (const std::string& one : opened) {
    const int flags = fcntl(std::stoi(one), F_GETFD);
    EXPECT_TRUE(flags >= 0 && (flags & FD_CLOEXEC) != 0) << one;
  }
}

TEST_P(Forks, ASpawnedProgramEndsAndTheJobGoesOn) {
  std::array<char*, 2> arguments{const_cast<char*>("true"), nullptr};
  pid_t child = -1;
  ASSERT_EQ(posix_spawn(&child, "/bin/true", nullptr, nullptr, arguments.data(), environ), 0);
  carry_on(child);
}

INSTANTIATE_TEST_SUITE_P(Abi, Forks,
                         ::testing::Combine(::testing::Values(abi_of_traps), ::testing::Bool()),
                         instance_name);

/// Over RDMA, with the NIC of tests/rig/nic in place of rdma-core.
class ForksWithRdma : public Forks {
 protected:
  const char* fabric() const override { return "verbs"; }
  void prepare() override {
    // The plugin's dlopen() finds it by its name from now on.
    ASSERT_NE(dlopen(NHA_MODULE_DIR "/fake_nic/libibverbs.so.1", RTLD_NOW | RTLD_LOCAL), nullptr)
        << dlerror();
    load();  // makes the NIC, which has a thread and sockets for ever
    library_.reset();
  }
  /// The NIC's side of completion channels, and its sockets to itself.
  bool is_others(int fd) const override {
    int domain = 0;
    socklen_t length = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0) {
      return domain == AF_UNIX;
    }
    return (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY;
  }
};

TEST_P(ForksWithRdma, TheChildExits) {
  beside([] {});
}

TEST_P(ForksWithRdma, TheChildOfABareCloneExits) {
  beside([] {}, bare_clone);
}

TEST_P(ForksWithRdma, TheChildLivesOnWithNothingOfItsParents) {
  EXPECT_GT(new_descriptors().size(), 5U);
  beside([&] {
    expect_refusals();
    EXPECT_EQ(new_descriptors(), std::set<std::string>());
  });
}

INSTANTIATE_TEST_SUITE_P(Abi, ForksWithRdma,
                         ::testing::Combine(::testing::Values(abi_of_traps), ::testing::Bool()),
                         instance_name);

/// A process that connects to the handle from `fd`, forks a child that lives on, and waits.
int forking_role(int fd) {
  auto library = load_library(abi_of_traps);
  tools::NetHandle handle{};
  if (!library || !read_all(fd, handle.data(), handle.size())) {
    return 2;
  }
  void* comm = nullptr;
  if (!until([&] {
        auto got = library->api().connect(0, handle);
        comm = got ? *got : nullptr;
        return !got || comm != nullptr;
      }) ||
      comm == nullptr) {
    return 3;
  }
  const pid_t survivor = fork();
  if (survivor == 0) {
    alarm(child_limit_s);
    char byte = 0;
    static_cast<void>(!read(fd, &byte, 1));  // until the test is over
    _exit(0);
  }
  static_cast<void>(write_all(fd, &survivor, sizeof survivor));
  pause();
  return 4;
}

class Orphans : public ::testing::TestWithParam<bool> {};

TEST_P(Orphans, AChildKeepsNoConnectionOfAParentThatIsKilled) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("HA_NCCL_FABRIC", "datagram", 1);
  setenv("HA_NCCL_USE_PROGRESS_THREAD", GetParam() ? "1" : "0", 1);
  ASSERT_EQ(plugin_threads(), 0U);
  Child child([](int fd) { return forking_role(fd); });
  auto library = load_library(abi_of_traps);
  ASSERT_NE(library, nullptr);
  tools::NetApi& api = library->api();
  tools::NetHandle handle{};
  auto listening = api.listen(0, handle);
  ASSERT_TRUE(listening && write_all(child.fd(), handle.data(), handle.size()));
  void* comm = nullptr;
  ASSERT_TRUE(until([&] {
    auto got = api.accept(*listening);
    EXPECT_TRUE(got);
    comm = got ? *got : nullptr;
    return HasFailure() || comm != nullptr;
  }));
  pid_t survivor = -1;
  ASSERT_TRUE(read_all(child.fd(), &survivor, sizeof survivor));
  std::vector<unsigned char> memory(4096);
  auto key = api.register_memory(comm, memory.data(), memory.size());
  ASSERT_TRUE(key);
  void* request = nullptr;
  void* data = memory.data();
  const size_t bytes = memory.size();
  const int tag = 1;
  ASSERT_EQ(api.irecv(comm, 1, &data, &bytes, &tag, &*key, &request), NcclResult::success);
  child.signal_child(SIGKILL);
  ASSERT_TRUE(WIFSIGNALED(child.wait()));
  const auto killed = Steady::now();
  NcclResult result = NcclResult::success;
  EXPECT_TRUE(until([&] {
    int done = 0;
    result = api.test(request, &done, nullptr);
    return result != NcclResult::success;
  }));
  // docs/failover.md: 0.25 to 0.45 s, on a machine that may be busy.
  EXPECT_LT(Steady::now() - killed, milliseconds(500) + seconds(5));
  EXPECT_EQ(result, NcclResult::remote_error);
  EXPECT_EQ(kill(survivor, 0), 0) << "the child did not outlive its parent";
  EXPECT_TRUE(api.close_recv(comm));
  EXPECT_TRUE(api.close_listen(*listening));
  EXPECT_TRUE(api.finalize());
  unsetenv("HA_NCCL_FABRIC");
}

INSTANTIATE_TEST_SUITE_P(Modes, Orphans, ::testing::Bool(), [](const auto& instance) {
  return instance.param ? std::string("threads") : std::string("inline");
});

class Handlers : public PluginFixture {};

struct sigaction saved_action;
std::atomic<int> chained{0};
void chaining_handler(int number) {
  chained.fetch_add(1);
  saved_action.sa_handler(number);
}

TEST_P(Handlers, WhoChainedTheSignalHandlerMayCallItAfterUnloading) {
  tests::TemporaryFolder temporary("/dev/shm");
  setenv("HA_NCCL_COUNTERS_DIR", temporary.path().c_str(), 1);
  exchange(open_connection(), 100, 1);
  struct sigaction mine {};
  mine.sa_handler = chaining_handler;
  ASSERT_EQ(sigaction(SIGUSR2, &mine, &saved_action), 0);
  ASSERT_NE(saved_action.sa_handler, SIG_DFL) << "the plugin has no handler";
  chained = 0;
  raise(SIGUSR2);
  unload();  // expects that it is gone
  raise(SIGUSR2);
  EXPECT_EQ(chained.load(), 2);
  // Restored, as by somebody who wanted the signal for a while only.
  ASSERT_EQ(sigaction(SIGUSR2, &saved_action, nullptr), 0);
  raise(SIGUSR2);
  // The plugin that comes next knows its own.
  load();
  exchange(open_connection(), 100, 2);
  raise(SIGUSR2);
  unload();
  struct sigaction now {};
  ASSERT_EQ(sigaction(SIGUSR2, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
  unsetenv("HA_NCCL_COUNTERS_DIR");
}

TEST_P(Handlers, UnloadingAndLoadingAgainMapsNothingMore) {
  tests::TemporaryFolder temporary("/dev/shm");
  setenv("HA_NCCL_COUNTERS_DIR", temporary.path().c_str(), 1);
  for (int round = 0; round < 4; ++round) {
    exchange(open_connection(), 100, 1);
    unload();
    EXPECT_LE(mappings_of("nha-trace-signal"), 5U) << "in round " << round;
    load();
  }
  EXPECT_GT(mappings_of("nha-trace-signal"), 0U);
  unsetenv("HA_NCCL_COUNTERS_DIR");
}

INSTANTIATE_TEST_SUITE_P(Abi, Handlers,
                         ::testing::Combine(::testing::Values(abi_without_contexts, abi_of_traps),
                                            ::testing::Bool()),
                         instance_name);

}  // namespace
}  // namespace nccl_ha::test
