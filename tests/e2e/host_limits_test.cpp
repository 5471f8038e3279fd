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

#include "tests/support/one_life.h"
#include "tests/support/plugin_fixture.h"
#include "tools/common/elf_symbols.h"

namespace nccl_ha::test {
namespace {

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
