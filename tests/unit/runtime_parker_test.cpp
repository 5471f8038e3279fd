#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>

#include "runtime/engine/parker.h"
#include "tests/support/log_lines.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ParkerTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(pipe(pipe_.data()), 0); }
  void TearDown() override {
    close(pipe_[0]);
    close(pipe_[1]);
    std::fclose(file_);
  }
  /// How long a sleep lasts that is to end after a minute at the latest.
  Duration slept() {
    const Instant start = clock_.now();
    parker_->sleep(start + std::chrono::minutes(1), start);
    return clock_.now() - start;
  }

  SteadyClock clock_;
  std::unique_ptr<Parker> parker_ = *Parker::make();
  std::array<int, 2> pipe_{};
  std::FILE* file_ = std::tmpfile();  ///< nothing that a kernel can watch
};

TEST_F(ParkerTest, SleepsUntilADescriptorIsReadableOrSomebodyWakesIt) {
  parker_->watch({pipe_[0]});
  const Instant start = clock_.now();
  parker_->sleep(start + milliseconds(30), start);
  EXPECT_GE(clock_.now() - start, milliseconds(30)) << "nothing was to be had";
  parker_->wake();
  EXPECT_LT(slept(), seconds(30));
  ASSERT_EQ(write(pipe_[1], "x", 1), 1);
  EXPECT_LT(slept(), seconds(30));
}

TEST_F(ParkerTest, WhatTheKernelRefusesToWatchIsLookedAtOften) {
  const test::LogLines log;
  parker_->watch({fileno(file_), pipe_[0]});
  EXPECT_LT(slept(), seconds(30));
  EXPECT_FALSE(parker_->whole());
  parker_->watch({fileno(file_), pipe_[0]});
  EXPECT_LT(slept(), seconds(30));
  EXPECT_EQ(log.count("looks every millisecond"), 1U) << log.text();
  parker_->watch({pipe_[0]});
  const Instant start = clock_.now();
  parker_->sleep(start + milliseconds(30), start);
  EXPECT_GE(clock_.now() - start, milliseconds(30)) << "all is watched now";
}

TEST_F(ParkerTest, SleepsAreShortUntilItIsToldWhatToSleepOn) {
  parker_->watch({pipe_[0]});
  parker_->lose_track();
  EXPECT_LT(slept(), seconds(30));
  EXPECT_FALSE(parker_->whole());
  parker_->watch({pipe_[0]});
  EXPECT_TRUE(parker_->whole());
}

}  // namespace
}  // namespace nccl_ha
