#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "runtime/base/host.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha {
namespace {

TEST(Host, TellsWhenThisProcessBegan) {
  EXPECT_EQ(process_start_ticks(static_cast<uint32_t>(getpid())), process_start_ticks());
  const auto ticks_now = [] {
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    const auto each = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
    return static_cast<uint64_t>(now.tv_sec) * each +
           static_cast<uint64_t>(now.tv_nsec) * each / 1'000'000'000;
  };
  EXPECT_LE(process_start_ticks(), ticks_now());
  const uint64_t before = ticks_now();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pause();
  }
  const uint64_t began = process_start_ticks(static_cast<uint32_t>(child));
  EXPECT_GE(began, before);
  EXPECT_LE(began, ticks_now());
  EXPECT_LE(process_start_ticks(), before) << "the parent is older";
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

TEST(Host, AProcessThatEndsWhileItIsAskedForIsNone) {
  // Asked for all the time, so that some of the processes end between the opening and the reading
  // of their file.
  std::atomic<uint32_t> pid{static_cast<uint32_t>(getpid())};
  std::atomic<bool> over{false};
  std::thread asks([&] {
    while (!over.load(std::memory_order_relaxed)) {
      process_start_ticks(pid.load(std::memory_order_relaxed));
    }
  });
  uint32_t last = 0;
  for (uint64_t i = 0; i < test::sim_alike(400); ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      _exit(0);
    }
    last = static_cast<uint32_t>(child);
    pid.store(last, std::memory_order_relaxed);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
  }
  over.store(true, std::memory_order_relaxed);
  asks.join();
  EXPECT_EQ(process_start_ticks(last), 0U);
}

}  // namespace
}  // namespace nccl_ha
