#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "runtime/telemetry/trace_signal.h"

namespace nccl_ha {
namespace {

/// Of eventfd(2).
class Ticks {
 public:
  Ticks() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Ticks() { close(fd_); }
  Ticks(const Ticks&) = delete;
  Ticks& operator=(const Ticks&) = delete;
  int fd() const { return fd_; }
  uint64_t take() const {
    uint64_t all = 0;
    return read(fd_, &all, sizeof all) > 0 ? all / TraceSignal::tick : 0;
  }

 private:
  int fd_;
};

TEST(TraceSignal, TicksAllWhoListen) {
  const Ticks one;
  const Ticks other;
  const TraceSignal first(one.fd());
  ASSERT_TRUE(first.heard());
  {
    const TraceSignal second(other.fd());
    raise(SIGUSR2);
  }
  raise(SIGUSR2);
  EXPECT_EQ(one.take(), 2U);
  EXPECT_EQ(other.take(), 1U);
}

TEST(TraceSignal, WhatIsClosedAfterwardsIsNotWrittenTo) {
  const Ticks lasting;
  const TraceSignal holds(lasting.fd());  // so that there is a handler all the time
  std::atomic<bool> ends{false};
  std::thread asks([&] {
    while (!ends.load()) {
      raise(SIGUSR2);
    }
  });
  while (lasting.take() == 0) {
    std::this_thread::yield();
  }
  int same = 0;
  uint64_t foreign = 0;
  for (int i = 0; i < 20'000; ++i) {
    int number = -1;
    {
      const Ticks listening;
      number = listening.fd();
      const TraceSignal signal(listening.fd());
    }
    const Ticks somebody_elses;
    same += somebody_elses.fd() == number ? 1 : 0;
    foreign += somebody_elses.take();
  }
  ends.store(true);
  asks.join();
  EXPECT_GT(same, 0) << "no descriptor was used again";
  EXPECT_EQ(foreign, 0U);
}

TEST(TraceSignal, OfAForkDoesNotTickItsParent) {
  const Ticks mine;
  const TraceSignal signal(mine.fd());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Ticks own;
    const TraceSignal of_child(own.fd());
    raise(SIGUSR2);
    _exit(own.take() == 1 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(mine.take(), 0U);
  raise(SIGUSR2);
  EXPECT_EQ(mine.take(), 1U);
}

}  // namespace
}  // namespace nccl_ha
