#include <gtest/gtest.h>

#include <deque>

#include "ha/rail_estimate.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A link that carries what is posted, one after the other.
class Link {
 public:
  Link(RailEstimate& estimate, uint64_t rate) : estimate_(estimate), rate_(rate) {}
  uint64_t open() const { return open_; }
  Instant now() const { return now_; }
  void set_rate(uint64_t rate) { rate_ = rate; }
  void post(uint64_t bytes) {
    estimate_.on_posted(bytes, open_, now_);
    open_ += bytes;
    const auto takes = Duration(static_cast<int64_t>(bytes * 1'000'000'000 / rate_));
    busy_until_ = std::max(busy_until_, now_) + takes;
    under_way_.push_back({busy_until_ + delay, bytes});
  }
  /// Time passes, and what arrives is acknowledged.
  void pass(Duration time) {
    const Instant end = now_ + time;
    while (!under_way_.empty() && under_way_.front().first <= end) {
      now_ = under_way_.front().first;
      open_ -= under_way_.front().second;
      estimate_.on_delivered(under_way_.front().second, now_);
      under_way_.pop_front();
    }
    now_ = end;
  }
  /// Keeps `bytes` under way in chunks of 32 KiB.
  void load(uint64_t bytes, Duration time) {
    const Instant end = now_ + time;
    while (now_ < end) {
      while (open_ < bytes) {
        post(32768);
      }
      pass(microseconds(50));
    }
  }
  double rate() const { return static_cast<double>(estimate_.rate(open_, now_)); }

 private:
  static constexpr Duration delay = microseconds(100);
  RailEstimate& estimate_;
  uint64_t rate_;
  Instant now_{seconds(1)};
  uint64_t open_ = 0;
  Instant busy_until_{};
  std::deque<std::pair<Instant, uint64_t>> under_way_;
};

TEST(RailEstimate, BeginsWithWhatTheDeviceSays) {
  RailEstimate estimate;
  estimate.begin(2'000'000'000);
  EXPECT_NEAR(static_cast<double>(estimate.rate(0, Instant(seconds(1)))), 2e9, 10);
  EXPECT_FALSE(estimate.measured());
  EXPECT_EQ(estimate.delay(), Duration{});
}

TEST(RailEstimate, FindsTheRateOfALoadedRailWhateverTheDeviceSays) {
  for (const uint64_t rate :
       {uint64_t{5'000'000}, uint64_t{50'000'000}, uint64_t{12'000'000'000}}) {
    RailEstimate estimate;
    estimate.begin(1'250'000'000);
    Link link(estimate, rate);
    link.load(std::max<uint64_t>(200'000, rate / 1000), milliseconds(200));
    EXPECT_NEAR(link.rate(), static_cast<double>(rate), 0.1 * static_cast<double>(rate));
  }
}

TEST(RailEstimate, TheDelayIsTheLeastThatWasSeen) {
  RailEstimate estimate;
  Link link(estimate, 100'000'000);
  link.post(10'000);
  link.pass(milliseconds(1));
  link.load(500'000, milliseconds(50));
  EXPECT_EQ(estimate.delay(), microseconds(200));
}

TEST(RailEstimate, ARailThatBecomesSlowIsFoundOutSoon) {
  RailEstimate estimate;
  Link link(estimate, 50'000'000);
  link.load(200'000, milliseconds(100));
  link.set_rate(5'000'000);
  link.load(200'000, milliseconds(60));
  EXPECT_LT(link.rate(), 6e6);
}

/// Before anything came back at all.
TEST(RailEstimate, ARailThatIsSilentIsTakenForSlow) {
  RailEstimate estimate;
  Link link(estimate, 50'000'000);
  link.load(200'000, milliseconds(100));
  link.set_rate(1'000'000);
  link.pass(milliseconds(10));  // with what was under way
  link.post(32768);
  const double before = link.rate();
  link.pass(milliseconds(20));
  EXPECT_LT(link.rate(), before / 10);
}

TEST(RailEstimate, ARailThatHasNothingToDoIsNoSlowOne) {
  RailEstimate estimate;
  Link link(estimate, 50'000'000);
  link.load(200'000, milliseconds(100));
  link.pass(milliseconds(20));
  for (int i = 0; i < 100; ++i) {  // one chunk at a time: the delay is most of it
    link.post(2000);
    link.pass(milliseconds(2));
  }
  EXPECT_GT(link.rate(), 45e6);
}

TEST(RailEstimate, OneMessageAtATimeTellsOfASlowRailToo) {
  RailEstimate estimate;
  estimate.begin(1'250'000'000);
  Link link(estimate, 50'000'000);
  for (int i = 0; i < 20; ++i) {
    for (int chunk = 0; chunk < 8; ++chunk) {
      link.post(32768);
    }
    link.pass(milliseconds(20));
  }
  EXPECT_NEAR(link.rate(), 50e6, 10e6);
}

TEST(RailEstimate, ASlowRailThatWasLeftAloneIsTriedAgainAndLessAndLessOften) {
  RailEstimate estimate;
  Link link(estimate, 50'000'000);
  link.load(200'000, milliseconds(100));
  link.set_rate(1'000'000);
  link.load(100'000, milliseconds(400));
  while (link.open() != 0) {
    link.pass(milliseconds(1));
  }
  Duration first{};
  Duration last{};
  for (int round = 0; round < 4; ++round) {
    Duration waited{};
    while (link.rate() < 10e6) {
      link.pass(milliseconds(10));
      waited += milliseconds(10);
      ASSERT_LT(waited, seconds(60));
    }
    (round == 0 ? first : last) = waited;
    link.post(32768);  // and it is slow still
    link.pass(milliseconds(100));
  }
  EXPECT_GE(first, milliseconds(100));
  EXPECT_GT(last, 2 * first);
}

TEST(RailEstimate, MessagesWithoutBytesSayNothingOfTheRate) {
  RailEstimate estimate;
  Link link(estimate, 50'000'000);
  link.load(200'000, milliseconds(100));
  for (int i = 0; i < 100; ++i) {
    link.post(0);
    link.pass(microseconds(300));
  }
  EXPECT_NEAR(link.rate(), 50e6, 5e6);
  link.post(100'000);
  link.post(0);
  link.pass(milliseconds(1));
  EXPECT_GT(link.rate(), 0);
}

TEST(RailEstimate, WhatNobodySawBeingPostedSaysNothing) {
  RailEstimate estimate;
  estimate.on_delivered(1000, Instant(seconds(5)));
  EXPECT_FALSE(estimate.measured());
  EXPECT_GT(estimate.rate(1000, Instant(seconds(5))), 1'000'000U);
}

TEST(RailEstimate, WhatWasLostIsNotWaitedFor) {
  RailEstimate estimate;
  const Instant begin{seconds(1)};
  estimate.on_posted(1000, 0, begin);
  estimate.on_lost(begin + milliseconds(1));
  estimate.on_posted(1000, 0, begin + seconds(1));
  estimate.on_delivered(1000, begin + seconds(1) + microseconds(300));
  EXPECT_EQ(estimate.delay(), microseconds(300));
}

}  // namespace
}  // namespace nccl_ha::ha
