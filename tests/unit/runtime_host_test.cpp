#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "runtime/base/host.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha {
namespace {

TEST(Host, TellsWhenThisProcessBegan) {
  EXPECT_NE(process_start_ticks(), 0U);
  EXPECT_EQ(process_start_ticks(static_cast<uint32_t>(getpid())), process_start_ticks());
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
