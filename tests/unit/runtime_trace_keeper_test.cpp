#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/telemetry/counter_reader.h"
#include "runtime/telemetry/trace_keeper.h"
#include "tests/support/counter_files.h"

namespace nccl_ha {
namespace {

constexpr std::chrono::milliseconds an_hour(3'600'000);
constexpr std::chrono::milliseconds no_time(0);

class TraceKeeperTest : public test::CounterFiles {
 protected:
  std::unique_ptr<TraceKeeper> start(std::chrono::milliseconds interval, bool on_signal = false,
                                     uint64_t bytes_max = 1 << 20) {
    return TraceKeeper::start(file_, {folder_, interval, bytes_max, on_signal});
  }
  /// The reasons of all dumps.
  std::vector<std::string> reasons() const {
    std::vector<std::string> all;
    for (const std::string& name : names()) {
      if (name.ends_with(".trace")) {
        const auto read = read_counter_file(folder_ + "/" + name);
        EXPECT_TRUE(read) << read.error().message();
        all.push_back(read ? read->snapshot.reason : "");
      }
    }
    return all;
  }
  static void wait_for(const TraceKeeper& keeper, uint64_t dumps) {
    while (keeper.written() < dumps) {
      std::this_thread::yield();
    }
  }
  static bool handles_signal() {
    struct sigaction now {};
    sigaction(SIGUSR2, nullptr, &now);
    return now.sa_handler != SIG_DFL;
  }

  std::shared_ptr<CounterFile> file_ = make();
};

TEST_F(TraceKeeperTest, SettingsSayWhetherThereAreDumpsAndWhetherTheSignalMakesOne) {
  Config config;
  config.trace_dir = folder_;
  config.trace_signal = false;
  const auto without = TraceKeeper::start(file_, TraceKeeper::options_of(config));
  ASSERT_NE(without, nullptr);
  EXPECT_FALSE(handles_signal());
  config.trace_signal = true;
  auto with = TraceKeeper::start(file_, TraceKeeper::options_of(config));
  EXPECT_TRUE(handles_signal());
  with.reset();
  config.trace_mb = 0;
  EXPECT_EQ(TraceKeeper::start(file_, TraceKeeper::options_of(config)), nullptr);
  EXPECT_FALSE(handles_signal());
}

TEST_F(TraceKeeperTest, SettingsSayHowMuchIsKept) {
  Config config;
  config.trace_dir = folder_;
  config.trace_interval_ms = 0;
  config.trace_mb = 1;
  // An older dump that leaves room for no other.
  const std::string older = folder_ + "/nccl-ha-1.trace";
  const auto make_older = [&] { std::ofstream(older) << std::string(1 << 20, 'x'); };
  make_older();
  ASSERT_TRUE(std::filesystem::exists(older));
  auto keeper = TraceKeeper::start(file_, TraceKeeper::options_of(config));
  keeper->ask(TraceCause::failure);
  keeper.reset();
  EXPECT_FALSE(std::filesystem::exists(older)) << "the oldest makes room";
  EXPECT_EQ(reasons().size(), 1U);
  make_older();
  config.trace_mb = 2;
  keeper = TraceKeeper::start(file_, TraceKeeper::options_of(config));
  keeper->ask(TraceCause::failure);
  keeper.reset();
  EXPECT_TRUE(std::filesystem::exists(older)) << "there is room for it";
}

TEST_F(TraceKeeperTest, SettingsSayHowFarDumpsAreApart) {
  Config config;
  config.trace_interval_ms = 3000;
  const TraceKeeper::Options options = TraceKeeper::options_of(config);
  TraceSchedule schedule({options.interval, options.settle});
  const Instant first(std::chrono::seconds(100));
  schedule.ask(bit_of(TraceCause::failure), first);
  ASSERT_EQ(schedule.take(first), bit_of(TraceCause::failure));
  schedule.ask(bit_of(TraceCause::failure), first + std::chrono::milliseconds(1));
  EXPECT_EQ(schedule.due(), first + std::chrono::seconds(3));
}

TEST_F(TraceKeeperTest, AFailoverIsDumped) {
  const auto keeper = start(an_hour);
  keeper->ask(TraceCause::failover);
  wait_for(*keeper, 1);
  EXPECT_EQ(reasons(), std::vector<std::string>{"a path was replaced"});
}

TEST_F(TraceKeeperTest, SoonAfterAnotherOneItWaitsButAFailureDoesNot) {
  auto keeper = start(an_hour);
  keeper->ask(TraceCause::failover);
  wait_for(*keeper, 1);
  keeper->ask(TraceCause::failover);
  keeper->ask(TraceCause::failure);
  wait_for(*keeper, 2);
  keeper->ask(TraceCause::failover);
  keeper->ask(TraceCause::failure);
  keeper.reset();  // does what it was asked before it ends
  EXPECT_EQ(reasons().size(), 3U);
}

TEST_F(TraceKeeperTest, WhatWaitsIsWrittenWhenItsTimeCame) {
  const auto keeper = start(std::chrono::milliseconds(100));
  const Instant before = SteadyClock().now();
  keeper->ask(TraceCause::failure);
  wait_for(*keeper, 1);
  keeper->ask(TraceCause::failure);
  wait_for(*keeper, 2);
  EXPECT_LE(std::chrono::milliseconds(100), SteadyClock().now() - before);
}

/// A disk that does not answer until it is told to.
struct Hanging {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  bool answers = false;
  bool ended = false;

  Result<void> write() {
    std::unique_lock lock(mutex);
    reached = true;
    changed.notify_all();
    changed.wait(lock, [this] { return answers; });
    ended = true;
    changed.notify_all();
    return {};
  }
};

TEST_F(TraceKeeperTest, ADiskThatHangsHoldsUpNobody) {
  const auto disk = std::make_shared<Hanging>();
  TraceKeeper::Options options{folder_, an_hour, 1 << 20, false, true};
  options.stop_limit = std::chrono::milliseconds(10);
  options.write = [disk](const std::string&, std::span<const std::byte>) { return disk->write(); };
  auto keeper = TraceKeeper::start(file_, options);
  keeper->ask(TraceCause::failure);
  {
    std::unique_lock lock(disk->mutex);
    disk->changed.wait(lock, [&] { return disk->reached; });
  }
  testing::internal::CaptureStderr();
  keeper.reset();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("is still being written to " + folder_),
            std::string::npos);
  std::unique_lock lock(disk->mutex);
  EXPECT_FALSE(disk->ended);
  disk->answers = true;
  disk->changed.notify_all();
  disk->changed.wait(lock, [&] { return disk->ended; });
}

TEST_F(TraceKeeperTest, WithoutMemoryThereIsNoDumpAndTheJobGoesOn) {
  TraceKeeper::Options options{folder_, an_hour, 1 << 20, false};
  options.write = [](const std::string&, std::span<const std::byte>) -> Result<void> {
    throw std::bad_alloc();
  };
  auto keeper = TraceKeeper::start(file_, options);
  testing::internal::CaptureStderr();
  keeper->ask(TraceCause::failure);
  keeper.reset();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("there is no memory"), std::string::npos);
}

TEST_F(TraceKeeperTest, TheSignalDumpsAndIsLeftAsItWas) {
  ASSERT_FALSE(handles_signal());
  auto keeper = start(an_hour, true);
  auto second = start(an_hour, true);
  EXPECT_TRUE(handles_signal());
  raise(SIGUSR2);
  wait_for(*keeper, 1);
  wait_for(*second, 1);
  EXPECT_EQ(reasons().front(), "SIGUSR2");
  keeper.reset();
  EXPECT_TRUE(handles_signal());
  second.reset();
  EXPECT_FALSE(handles_signal());
}

volatile sig_atomic_t own_handler_ran = 0;

TEST_F(TraceKeeperTest, AHandlerOfTheProcessStays) {
  struct sigaction own {};
  own.sa_handler = [](int) { own_handler_ran = 1; };
  sigaction(SIGUSR2, &own, nullptr);
  auto keeper = start(an_hour, true);
  raise(SIGUSR2);
  EXPECT_EQ(own_handler_ran, 1);
  keeper.reset();
  struct sigaction now {};
  sigaction(SIGUSR2, nullptr, &now);
  EXPECT_EQ(now.sa_handler, own.sa_handler);
  EXPECT_TRUE(reasons().empty());
  signal(SIGUSR2, SIG_DFL);
}

TEST_F(TraceKeeperTest, WhereThereIsNoRoomThereIsNoDump) {
  auto keeper = start(no_time, false, 100);
  keeper->ask(TraceCause::failure);
  keeper.reset();
  EXPECT_TRUE(reasons().empty());
  EXPECT_EQ(start(no_time, false, 0), nullptr);
}

}  // namespace
}  // namespace nccl_ha
