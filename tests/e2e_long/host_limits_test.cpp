// The plugin under limits of its host process on threads and locked memory, from nothing up: an
// error that names what is short, or a connection; never a signal, a hang or the end of the
// process.
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/support/one_life.h"

namespace nccl_ha::test {
namespace {

// The sanitizers reserve address space and start threads of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

constexpr uid_t nobody_else = 64123;  ///< a user who runs nothing here

struct Outcomes {
  int refused = 0;
  int worked = 0;
  std::string last_error;
};

class EveryLimit : public ::testing::TestWithParam<std::tuple<bool, From>> {
 protected:
  void SetUp() override {
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("HA_NCCL_USE_PROGRESS_THREAD", std::get<0>(GetParam()) ? "1" : "0", 1);
    setenv("HA_NCCL_CONNECT_TIMEOUT_MS", "10000", 1);
  }
  void TearDown() override { unsetenv("HA_NCCL_CONNECT_TIMEOUT_MS"); }
  bool threads() const { return std::get<0>(GetParam()); }

  /// One life under `limit`; `prepare` runs first in the child.
  void live(
      decltype(RLIMIT_NPROC) what, const std::function<rlim_t()>& limit, Outcomes& all,
      const std::function<void()>& prepare = [] {}) const {
    Told told;
    const int status = in_child(&told, [&](Told& out) {
      prepare();
      rlimit before{};
      getrlimit(what, &before);
      live_under(
          out, std::get<1>(GetParam()),
          [&] {
            const rlimit tight{limit(), before.rlim_max};
            setrlimit(what, &tight);
          },
          [&] { setrlimit(what, &before); });
    });
    ASSERT_TRUE(WIFEXITED(status))
        << "signal " << WTERMSIG(status) << (WTERMSIG(status) == SIGALRM ? " (a hang)" : "") << ": "
        << told.text;
    ASSERT_TRUE(WEXITSTATUS(status) == 0 && told.recovered) << "with enough again: " << told.text;
    ++(told.refused ? all.refused : all.worked);
    if (told.refused) {
      all.last_error = told.text;
      EXPECT_NE(all.last_error, "") << "an error without a word";
    }
  }
};

TEST_P(EveryLimit, Processes) {
  Outcomes all;
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1}, rlim_t{2}, rlim_t{3}, rlim_t{4}, rlim_t{5},
                             rlim_t{6}, rlim_t{7}, RLIM_INFINITY}) {
    SCOPED_TRACE(std::to_string(limit) + " processes");
    live(
        RLIMIT_NPROC, [&] { return limit; }, all,
        [] {
          // The limit does not hold for root.
          const bool root = geteuid() == 0;
          if (root && (setgroups(0, nullptr) != 0 ||
                       setresgid(nobody_else, nobody_else, nobody_else) != 0 ||
                       setresuid(nobody_else, nobody_else, nobody_else) != 0)) {
            _exit(9);
          }
        });
    ASSERT_FALSE(HasFatalFailure());
  }
  EXPECT_GE(all.worked, 1) << all.last_error;
  if (threads() && std::get<1>(GetParam()) == From::init) {
    EXPECT_GE(all.refused, 1) << "the limit was never felt";
    EXPECT_NE(all.last_error.find("RLIMIT_NPROC"), std::string::npos) << all.last_error;
  }
}

// Nothing but RDMA takes locked memory: whatever the limit, UDP works.
TEST_P(EveryLimit, LockedMemory) {
  Outcomes all;
  for (const rlim_t limit : {0U, 1U, 4096U, 65536U, 1U << 20}) {
    SCOPED_TRACE(std::to_string(limit) + " bytes locked");
    live(
        RLIMIT_MEMLOCK, [&] { return limit; }, all);
    ASSERT_FALSE(HasFatalFailure());
  }
  EXPECT_EQ(all.refused, 0) << all.last_error;
}

/// Bytes of address space that this process has.
rlim_t address_space() {
  std::ifstream pages("/proc/self/statm");
  rlim_t count = 0;
  pages >> count;
  return count * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

TEST_P(EveryLimit, AddressSpace) {
  Outcomes all;
  for (rlim_t more = 0; more <= 64U << 20; more += 1U << 20) {
    SCOPED_TRACE(std::to_string(more >> 20) + " MiB more than it has");
    live(
        RLIMIT_AS, [&] { return address_space() + more; }, all);
    ASSERT_FALSE(HasFatalFailure());
  }
  EXPECT_GE(all.refused, 1) << "the limit was never felt";
}

INSTANTIATE_TEST_SUITE_P(Modes, EveryLimit,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(From::init, From::connect)),
                         [](const auto& instance) {
                           return std::string(std::get<0>(instance.param) ? "threads" : "inline") +
                                  (std::get<1>(instance.param) == From::init ? "_from_init"
                                                                             : "_from_connect");
                         });

#endif

}  // namespace
}  // namespace nccl_ha::test
