// What the plugin takes from its host process.  One that has little left, of descriptors or
// threads, gets an error that says so, never a signal or a hang, and once there is enough it all
// works. Unloading gives everything back, and an old C library will do.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/plugin_fixture.h"
#include "tools/common/elf_symbols.h"

namespace nccl_ha::test {
namespace {

constexpr unsigned hang_s = 60;

/// What a child tells its parent without a descriptor.
struct Told {
  bool refused = false;    ///< something failed under the limit
  bool recovered = false;  ///< and all of it worked without
  char text[2048] = {};    ///< the error's, or what is wrong with the plugin
};

/// When the limit comes into force.
enum class From { init, connect };

/// Runs `body` in a child of its own.  The child's end as waitpid() has it.
int in_child(Told* told, const std::function<void(Told&)>& body) {
  void* memory =
      mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* shared = new (memory) Told;
  const pid_t child = fork();
  if (child == 0) {
    alarm(hang_s);
    body(*shared);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  *told = *shared;
  munmap(memory, sizeof(Told));
  return status;
}

/// With all that the plugin logged.
void tell(Told& told, const Error& error) {
  std::string text = error.message();
  for (const std::string& warning : tools::take_plugin_warnings()) {
    text += "\n  " + warning;
  }
  std::snprintf(told.text, sizeof told.text, "%s", text.c_str());
}

/// One connection of a process with itself, with a message, from init to finalize.
class Life {
 public:
  explicit Life(tools::NetApi& api) : api_(api) {}

  Result<void> run(const std::function<void()>& before_connect) {
    auto outcome = live(before_connect);
    close_all();
    if (auto ended = api_.finalize(); !ended && outcome) {
      return ended.error();
    }
    return outcome;
  }

 private:
  Result<void> live(const std::function<void()>& before_connect) {
    if (auto ready = api_.init(); !ready) {
      return ready.error();
    }
    tools::NetHandle handle{};
    auto listening = api_.listen(0, handle);
    if (!listening) {
      return listening.error();
    }
    listening_ = *listening;
    before_connect();
    if (auto met = meet(handle); !met) {
      return met.error();
    }
    return send_one();
  }

  Result<void> meet(tools::NetHandle& handle) {
    Result<void> outcome;
    const bool ended = until([&] {
      if (send_ == nullptr) {
        auto got = api_.connect(0, handle);
        if (!got) {
          outcome = got.error();
          return true;
        }
        send_ = *got;
      }
      if (recv_ == nullptr) {
        auto got = api_.accept(listening_);
        if (!got) {
          outcome = got.error();
          return true;
        }
        recv_ = *got;
      }
      return send_ != nullptr && recv_ != nullptr;
    });
    return ended ? outcome : fail(Errc::timed_out, "neither a connection nor an error");
  }

  Result<void> send_one() {
    void* data = &message_;
    size_t bytes = sizeof message_;
    auto key_there = api_.register_memory(send_, data, bytes);
    auto key_here = api_.register_memory(recv_, &received_, bytes);
    if (!key_there || !key_here) {
      return (key_there ? key_here : key_there).error();
    }
    void* requests[2] = {nullptr, nullptr};
    abi::NcclResult result = abi::NcclResult::success;
    const bool posted = until([&] {
      int tag = 0;
      void* into = &received_;
      if (requests[0] == nullptr) {
        result = api_.irecv(recv_, 1, &into, &bytes, &tag, &*key_here, &requests[0]);
      }
      if (result == abi::NcclResult::success && requests[1] == nullptr) {
        result = api_.isend(send_, data, bytes, 0, *key_there, &requests[1]);
      }
      return result != abi::NcclResult::success ||
             (requests[0] != nullptr && requests[1] != nullptr);
    });
    for (void* request : requests) {
      int done = 0;
      const bool ended = posted && result == abi::NcclResult::success && until([&] {
                           result = api_.test(request, &done, nullptr);
                           return done != 0 || result != abi::NcclResult::success;
                         });
      if (!ended || result != abi::NcclResult::success) {
        return fail(Errc::remote, "a message failed: " + tools::last_plugin_warning());
      }
    }
    static_cast<void>(api_.deregister_memory(send_, *key_there));
    static_cast<void>(api_.deregister_memory(recv_, *key_here));
    return received_ == message_ ? Result<void>() : fail(Errc::internal, "a message came damaged");
  }

  void close_all() {
    if (send_ != nullptr) {
      static_cast<void>(api_.close_send(send_));
    }
    if (recv_ != nullptr) {
      static_cast<void>(api_.close_recv(recv_));
    }
    if (listening_ != nullptr) {
      static_cast<void>(api_.close_listen(listening_));
    }
  }

  tools::NetApi& api_;
  void* listening_ = nullptr;
  void* send_ = nullptr;
  void* recv_ = nullptr;
  uint64_t message_ = 0x6D65737361676521;
  uint64_t received_ = 0;
};

/// Lives once while `tighten` is in force (from then on), and once more after `loosen`.
void live_under(Told& told, From from, const std::function<void()>& tighten,
                const std::function<void()>& loosen) {
  tools::set_plugin_log("", tools::PluginLog::nothing);
  auto library = tools::NetLibrary::open(plugin_path, 12, "");
  if (!library) {
    tell(told, library.error());
    _exit(1);
  }
  if (from == From::init) {
    tighten();
  }
  const auto outcome = Life((*library)->api()).run(from == From::connect ? tighten : [] {});
  loosen();
  if (!outcome) {
    told.refused = true;
    tell(told, outcome.error());
  }
  if (auto again = Life((*library)->api()).run([] {}); !again) {
    tell(told, again.error());
    _exit(2);
  }
  library->reset();
  told.recovered = true;
}

/// Of address space.
[[maybe_unused]] size_t mapped_bytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

class HostLimits : public ::testing::TestWithParam<std::tuple<bool, From>> {
 protected:
  void SetUp() override {
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("HA_NCCL_USE_PROGRESS_THREAD", std::get<0>(GetParam()) ? "1" : "0", 1);
    setenv("HA_NCCL_CONNECT_TIMEOUT_MS", "10000", 1);
  }
  void TearDown() override { unsetenv("HA_NCCL_CONNECT_TIMEOUT_MS"); }
  From from() const { return std::get<1>(GetParam()); }
};

TEST_P(HostLimits, AnyNumberOfDescriptorsGivesAnErrorOrAConnection) {
  constexpr rlim_t most = 64;
  bool enough = false;
  int refused = 0;
  for (rlim_t limit = 0; limit <= most; ++limit) {
    Told told;
    const int status = in_child(&told, [&](Told& out) {
      close_range(3, ~0U, 0);
      rlimit before{};
      getrlimit(RLIMIT_NOFILE, &before);
      live_under(
          out, from(),
          [&] {
            const rlimit tight{limit, before.rlim_max};
            setrlimit(RLIMIT_NOFILE, &tight);
          },
          [&] { setrlimit(RLIMIT_NOFILE, &before); });
    });
    ASSERT_TRUE(WIFEXITED(status))
        << "signal " << WTERMSIG(status) << (WTERMSIG(status) == SIGALRM ? " (a hang)" : "")
        << " with " << limit << " descriptors: " << told.text;
    ASSERT_TRUE(WEXITSTATUS(status) == 0 && told.recovered)
        << "with enough again after " << limit << " descriptors: " << told.text;
    const std::string text = told.text;
    if (told.refused) {
      ++refused;
      EXPECT_NE(text.find("Too many open files"), std::string::npos) << limit << ": " << text;
      EXPECT_NE(text.find("ulimit -n"), std::string::npos) << limit << ": " << text;
      EXPECT_FALSE(enough) << "with fewer than " << limit << " it worked: " << text;
    }
    enough = enough || !told.refused;
  }
  EXPECT_TRUE(enough) << "not even with " << most;
  EXPECT_GE(refused, 10) << "the limit was never felt";
}

INSTANTIATE_TEST_SUITE_P(Modes, HostLimits,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(From::init, From::connect)),
                         [](const auto& instance) {
                           return std::string(std::get<0>(instance.param) ? "threads" : "inline") +
                                  (std::get<1>(instance.param) == From::init ? "_from_init"
                                                                             : "_from_connect");
                         });

// The sanitizers' libraries take memory of their own and are of the build host.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

TEST(HostMemory, NoThreadIsAnErrorThatNamesTheLimits) {
  for (const char* threads : {"0", "1"}) {
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("HA_NCCL_USE_PROGRESS_THREAD", threads, 1);
    Told told;
    const int status = in_child(&told, [](Told& out) {
      rlimit before{};
      getrlimit(RLIMIT_AS, &before);
      live_under(
          out, From::init,
          [&] {
            // Less than a thread's stack, and enough for all else.
            pthread_attr_t attributes;
            pthread_attr_init(&attributes);
            pthread_attr_setstacksize(&attributes, size_t{1} << 30);
            pthread_setattr_default_np(&attributes);
            const rlimit tight{mapped_bytes() + (size_t{1} << 29), before.rlim_max};
            setrlimit(RLIMIT_AS, &tight);
          },
          [&] { setrlimit(RLIMIT_AS, &before); });
    });
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << ": " << told.text;
    EXPECT_TRUE(WEXITSTATUS(status) == 0 && told.recovered) << told.text;
    EXPECT_TRUE(told.refused) << "the limit was not felt";
    EXPECT_NE(std::string(told.text).find("cannot start a thread; limits are RLIMIT_NPROC"),
              std::string::npos)
        << told.text;
  }
}

/// Bytes in use on this process's heap, and in mappings of its own.
size_t heap_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(HostMemory, LoadingAndUnloadingLeavesNothingOnTheHeap) {
  const auto load_and_unload = [] {
    void* library = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    ASSERT_EQ(dlclose(library), 0);
    ASSERT_FALSE(plugin_mapped());
  };
  for (int i = 0; i < 10; ++i) {
    load_and_unload();  // the loader keeps some kilobytes from the first times
  }
  const size_t before = heap_in_use();
  constexpr int times = 100;
  for (int i = 0; i < times; ++i) {
    load_and_unload();
  }
  const size_t after = heap_in_use();
  EXPECT_LE(after, before + 1024) << "per time: " << (after - before) / times;
}

std::vector<int> numbers_of(const std::string& version) {
  std::vector<int> numbers;
  std::istringstream in(version.substr(version.find('_') + 1));
  for (std::string part; std::getline(in, part, '.');) {
    numbers.push_back(std::stoi(part));
  }
  return numbers;
}

TEST(HostLibraries, NothingNewerThanGlibc234IsNeeded) {
  const auto needed = tools::needed_versions(plugin_path);
  ASSERT_TRUE(needed) << needed.error().message();
  size_t of_glibc = 0;
  for (const tools::NeededVersion& one : *needed) {
    const auto symbols = ::testing::PrintToString(one.symbols);
    // Neither libstdc++ nor libgcc: they are linked in.
    ASSERT_TRUE(one.version.starts_with("GLIBC_")) << one.version << " for " << symbols;
    of_glibc += one.symbols.size();
    EXPECT_LE(numbers_of(one.version), (std::vector<int>{2, 34}))
        << one.version << " of " << one.library << " for " << symbols;
  }
  EXPECT_GT(of_glibc, 100U) << "nothing was looked at";
}

#endif

}  // namespace
}  // namespace nccl_ha::test
