// A device's control verbs on a thread of their own: their order, what their answers say, and what
// a command that hangs holds up.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/fabric/verbs/conductor.h"
#include "tests/support/until.h"

namespace nccl_ha::fabric::verbs {
namespace {

using Rank = Conductor::Rank;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Of the firmware: 0 or an errno value.
std::atomic<int> firmware_answer{0};
/// Of a completion queue.
std::atomic<int> least_entries{1};
/// Completion queues that there are.
std::atomic<int> queues{0};

/// A driver that knows by itself how its ports are, and what ends has always ended.
Library answering() {
  Library library;
  library.device.query_port = [](ibv_context*, uint8_t, ibv_port_attr*) { return 0; };
  library.completion.create_queue = [](ibv_context*, int entries, void*, ibv_comp_channel*, int) {
    static ibv_cq made{};
    errno = entries < least_entries ? EINVAL : firmware_answer.load();
    queues += errno == 0 ? 1 : 0;
    return errno == 0 ? &made : nullptr;
  };
  library.completion.destroy_queue = [](ibv_cq*) {
    --queues;
    return 0;
  };
  return library;
}

/// A command that does not return before it is let.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ != 0; });
  }
  void open() {
    {
      std::lock_guard lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

TEST(Conductors, WhatAFailoverWaitsForGoesFirstAndTheRestInItsOrder) {
  const Library library = answering();
  Conductor conductor(library, nullptr);
  Gate gate;
  std::vector<int> done;
  conductor.add(Rank::make, [&] { gate.pass(); });
  gate.await();
  for (int i = 0; i < 3; ++i) {
    conductor.add(Rank::end, [&, i] { done.push_back(30 + i); });
    conductor.add(Rank::make, [&, i] { done.push_back(20 + i); });
    conductor.add(Rank::stop, [&, i] { done.push_back(10 + i); });
  }
  EXPECT_FALSE(conductor.drain(milliseconds(10)));
  EXPECT_GT(conductor.busy(), milliseconds(9));
  gate.open();
  ASSERT_TRUE(conductor.drain(seconds(60)));
  EXPECT_EQ(done, (std::vector<int>{10, 11, 12, 20, 21, 22, 30, 31, 32}));
  EXPECT_EQ(conductor.busy(), Duration(0));
}

TEST(Conductors, CallersNeverWait) {
  const Library library = answering();
  Conductor conductor(library, nullptr);
  Gate gate;
  bool told = false;
  conductor.add(
      Rank::make, [&] { gate.pass(); }, [&] { told = true; });
  gate.await();
  EXPECT_FALSE(told) << "the command is under way";
  gate.open();
  ASSERT_TRUE(conductor.drain(seconds(60)));
  EXPECT_TRUE(told);
}

TEST(Conductors, ACommandWithoutMemoryEndsNoThreadAndIsTold) {
  const Library library = answering();
  Conductor conductor(library, nullptr);
  bool told = false;
  conductor.add(
      Rank::make, [] { throw std::bad_alloc(); }, [&] { told = true; });
  conductor.add(
      Rank::make, [] {}, [] { throw std::bad_alloc(); });
  const auto answer = conductor.ask();
  ASSERT_TRUE(conductor.drain(seconds(60)));
  EXPECT_TRUE(told);
  EXPECT_TRUE(answer->confirmed());
}

TEST(Conductors, OneQuestionServesAllWhoAskAfterTheSameCommands) {
  const Library library = answering();
  Conductor conductor(library, nullptr);
  Gate gate;
  firmware_answer = EIO;
  conductor.add(Rank::make, [&] { gate.pass(); });
  gate.await();
  const auto first = conductor.ask();
  const auto second = conductor.ask();
  int errors = 0;
  conductor.add(Rank::stop, [&] { errors = firmware_answer.exchange(0); });
  const auto third = conductor.ask();
  EXPECT_EQ(first, second);
  EXPECT_NE(first, third) << "a command lies between";
  EXPECT_FALSE(first->over());
  gate.open();
  ASSERT_TRUE(conductor.drain(seconds(60)));
  EXPECT_EQ(errors, EIO);
  EXPECT_EQ(first->error(), EIO);
  EXPECT_TRUE(third->confirmed());
}

TEST(Conductors, TheFirmwareIsAskedAndNotItsDriver) {
  const Library library = answering();
  Conductor conductor(library, nullptr);
  EXPECT_EQ(conductor.question(), 0);
  EXPECT_EQ(queues, 0) << "one question leaves nothing behind";
  least_entries = 16;
  EXPECT_EQ(conductor.question(), 0);
  EXPECT_EQ(queues, 0);
  least_entries = 1;
  for (const int error : {EIO, ETIMEDOUT, ENODEV, EBUSY}) {
    firmware_answer = error;
    EXPECT_EQ(conductor.question(), error);
    EXPECT_FALSE(is_shortage(error));
  }
  for (const int error : {ENOMEM, EAGAIN, EINVAL, ENOSPC}) {
    firmware_answer = error;
    EXPECT_EQ(conductor.question(), error);
    EXPECT_TRUE(is_shortage(error)) << "no answer either way";
  }
  firmware_answer = 0;
}

TEST(Conductors, AnAnswerIsAwaitedButNotForLong) {
  const Library library = answering();
  Conductor conductor(library, nullptr);
  Gate gate;
  conductor.add(Rank::make, [&] { gate.pass(); });
  gate.await();
  const auto answer = conductor.ask();
  conductor.await(*answer, milliseconds(2));
  EXPECT_FALSE(answer->over());
  std::thread opener([&] {
    std::this_thread::yield();
    gate.open();
  });
  conductor.await(*answer, seconds(60));
  EXPECT_TRUE(answer->confirmed());
  opener.join();
  ASSERT_TRUE(conductor.drain(seconds(60)));
  // Where a command hangs already, another one would wait for it.
  Gate closed;
  conductor.add(Rank::make, [&] { closed.pass(); });
  closed.await();
  EXPECT_TRUE(test::until([&] { return conductor.busy() > milliseconds(2); }));
  const auto never = conductor.ask();
  conductor.await(*never, milliseconds(2));
  EXPECT_FALSE(never->over());
  closed.open();
  ASSERT_TRUE(conductor.drain(seconds(60)));
}

constexpr std::string_view asleep = "41 (nha (conductor)) S 1 2 3";
constexpr std::string_view runnable = "41 (nha (conductor)) R 1 2 3";

TEST(ThreadTime, IsWhatTheKernelSays) {
  const auto times = parse_thread_times("7000000 3000000 12\n", asleep);
  ASSERT_TRUE(times);
  EXPECT_EQ(times->ran, milliseconds(7));
  EXPECT_EQ(times->waited, milliseconds(3));
  EXPECT_FALSE(times->runnable);
  EXPECT_TRUE(parse_thread_times("0 0 0\n", runnable)->runnable);
  for (const std::string_view wrong : {"", "7", "7 ", "x 3 1"}) {
    EXPECT_FALSE(parse_thread_times(wrong, asleep)) << wrong;
  }
  for (const std::string_view wrong : {"", "41 (nha", "41 (nha)"}) {
    EXPECT_FALSE(parse_thread_times("7 3 1", wrong)) << wrong;
  }
}

TEST(ThreadTime, WithoutAProcessorIsNobodysHanging) {
  const ThreadTimes begun{milliseconds(5), milliseconds(50)};
  const ThreadTimes blocked{milliseconds(6), milliseconds(52)};
  EXPECT_EQ(time_kept(milliseconds(200), begun, blocked), milliseconds(198)) << "the firmware";
  const ThreadTimes starved{milliseconds(6), milliseconds(230)};
  EXPECT_EQ(time_kept(milliseconds(200), begun, starved), milliseconds(20)) << "before it waited";
  const ThreadTimes waits{milliseconds(6), milliseconds(50), true};
  EXPECT_EQ(time_kept(milliseconds(200), begun, waits), milliseconds(1)) << "it may be through";
  const ThreadTimes works{milliseconds(195), milliseconds(50), true};
  EXPECT_EQ(time_kept(milliseconds(200), begun, works), milliseconds(190)) << "it pins pages";
  EXPECT_EQ(time_kept(milliseconds(1), begun, starved), Duration(0));
}

TEST(Conductors, ACommandThatWorksAllTheTimeIsBusyAsOneThatWaits) {
  const Library library = answering();
  Conductor conductor(library, nullptr);
  std::atomic<bool> over{false};
  conductor.add(Rank::make, [&] {
    while (!over) {  // and never yields: Linux takes the rest of a slice from who does
    }
  });
  EXPECT_TRUE(test::until([&] { return conductor.busy() > milliseconds(100); }));
  over = true;
  ASSERT_TRUE(conductor.drain(seconds(60)));
  EXPECT_EQ(conductor.busy(), Duration(0));
}

// A device in virtual time: commands take as long as their calls would have blocked.
Duration waited_by_turn{};

TEST(Conductors, InASimulationCommandsTakeVirtualTimeAndNotTheCallers) {
  Library library = answering();
  library.waited = [](ibv_context*) -> Duration& { return waited_by_turn; };
  waited_by_turn = milliseconds(7);
  Conductor conductor(library, nullptr);
  const Instant start{seconds(5)};
  EXPECT_EQ(conductor.pump(start), std::nullopt);
  int told = 0;
  for (int i = 0; i < 2; ++i) {
    conductor.add(
        Rank::make, [] { waited_by_turn += milliseconds(20); }, [&] { ++told; });
  }
  EXPECT_EQ(waited_by_turn, milliseconds(7)) << "that of whoever's turn it is";
  EXPECT_EQ(told, 0);
  EXPECT_EQ(conductor.pump(start + milliseconds(19)), start + milliseconds(20));
  EXPECT_EQ(told, 0);
  EXPECT_EQ(conductor.pump(start + milliseconds(20)), start + milliseconds(40));
  EXPECT_EQ(told, 1);
  EXPECT_EQ(conductor.pump(start + milliseconds(40)), std::nullopt);
  EXPECT_EQ(told, 2);
  conductor.add(Rank::end, [] { waited_by_turn += seconds(60); });
  EXPECT_TRUE(conductor.drain(Duration(0)));
}

}  // namespace
}  // namespace nccl_ha::fabric::verbs
