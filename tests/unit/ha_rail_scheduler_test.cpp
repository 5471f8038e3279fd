#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "ha/rail_scheduler.h"
#include "runtime/base/random.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Load = RailScheduler::Load;

constexpr Instant begin_at{seconds(1)};

/// Rails that carry what they are given, one chunk after the other, and as much work as there is
/// room for.
class Rails {
 public:
  explicit Rails(std::vector<uint64_t> rates) : rates_(std::move(rates)), rails_(rates_.size()) {
    for (size_t i = 0; i < rates_.size(); ++i) {
      rails_[i].serves = true;
      scheduler.begin(i, 1'250'000'000);
    }
    busy_until_.resize(rates_.size(), begin_at);
    carried_.resize(rates_.size());
  }
  void set_rate(size_t rail, uint64_t rate) { rates_[rail] = rate; }
  void serve(size_t rail, bool serves) { rails_[rail].serves = serves; }

  /// Bytes delivered meanwhile.
  uint64_t run(Duration time, uint64_t waiting = 4 << 20, uint32_t chunk = 32768) {
    uint64_t delivered = 0;
    const Instant end = now_ + time;
    for (; now_ < end; now_ += microseconds(20)) {
      for (size_t i = 0; i < under_way_.size();) {
        const UnderWay one = under_way_[i];
        if (one.due > now_) {
          ++i;
          continue;
        }
        rails_[one.rail].open -= one.bytes;
        scheduler.estimate(one.rail).on_delivered(one.bytes, now_);
        delivered += one.bytes;
        under_way_.erase(under_way_.begin() + static_cast<ptrdiff_t>(i));
      }
      int given = 0;
      while (const auto rail = scheduler.pick(rails_, chunk, waiting, now_)) {
        if (++given > 1000) {
          ADD_FAILURE() << "there is no end to what rails are given";
          return delivered;
        }
        EXPECT_TRUE(rails_[*rail].serves);
        scheduler.estimate(*rail).on_posted(chunk, rails_[*rail].open, now_);
        rails_[*rail].open += chunk;
        carried_[*rail] += chunk;
        const auto takes =
            Duration(static_cast<int64_t>(uint64_t{chunk} * 1'000'000'000 / rates_[*rail]));
        busy_until_[*rail] = std::max(busy_until_[*rail], now_) + takes;
        under_way_.push_back({*rail, chunk, busy_until_[*rail] + microseconds(50)});
      }
    }
    return delivered;
  }
  double open_ms(size_t rail) const {
    return 1e3 * static_cast<double>(rails_[rail].open) / static_cast<double>(rates_[rail]);
  }
  uint64_t carried(size_t rail) const { return carried_[rail]; }
  Instant now() const { return now_; }
  RailScheduler scheduler;

 private:
  struct UnderWay {
    size_t rail;
    uint32_t bytes;
    Instant due;
  };
  std::vector<uint64_t> rates_;
  std::vector<Load> rails_;
  std::vector<Instant> busy_until_;
  std::vector<uint64_t> carried_;
  std::vector<UnderWay> under_way_;
  Instant now_ = begin_at;
};

TEST(RailScheduler, UnequalRailsAddUp) {
  for (const uint64_t part : {1U, 2U, 4U, 10U}) {
    const uint64_t slow = 100'000'000 / part;
    Rails rails({100'000'000, slow});
    rails.run(milliseconds(200));
    const double rate = static_cast<double>(rails.run(seconds(1)));
    EXPECT_GT(rate, 0.95 * (100e6 + static_cast<double>(slow))) << "1 to " << part;
  }
}

TEST(RailScheduler, FourRailsAddUp) {
  Rails rails({10'000'000, 40'000'000, 20'000'000, 30'000'000});
  rails.run(milliseconds(300));
  EXPECT_GT(static_cast<double>(rails.run(seconds(1))), 0.95 * 100e6);
}

TEST(RailScheduler, ARailThatBecomesSlowLosesItsShareWithinATenthOfASecond) {
  Rails rails({50'000'000, 50'000'000});
  rails.run(milliseconds(300));
  rails.set_rate(1, 5'000'000);
  rails.run(milliseconds(100));
  EXPECT_GT(static_cast<double>(rails.run(milliseconds(500))), 0.9 * 55e6 / 2);
  EXPECT_LT(rails.open_ms(1), 60) << "what it holds arrives soon";
  rails.set_rate(1, 50'000'000);
  rails.run(seconds(1));
  EXPECT_GT(static_cast<double>(rails.run(milliseconds(500))), 0.9 * 100e6 / 2);
}

TEST(RailScheduler, LittleWaitsOnAnyRail) {
  Rails rails({100'000'000, 10'000'000});
  rails.run(milliseconds(300));
  for (int i = 0; i < 100; ++i) {
    rails.run(milliseconds(3));
    EXPECT_LT(rails.open_ms(0), 8);
    EXPECT_LT(rails.open_ms(1), 30);
  }
}

TEST(RailScheduler, AHintGivesARailNoMoreThanHeartbeatsCanWaitBehind) {
  Rails rails({100'000'000, 10'000'000});
  rails.run(milliseconds(300));
  const Instant now = rails.now();
  RailScheduler& scheduler = rails.scheduler;
  EXPECT_TRUE(scheduler.has_room(1, 0, 1 << 20, now)) << "an idle rail takes anything";
  EXPECT_TRUE(scheduler.has_room(1, 50'000, 32768, now));
  EXPECT_FALSE(scheduler.has_room(1, 500'000, 32768, now)) << "50 ms of work";
  EXPECT_TRUE(scheduler.has_room(0, 500'000, 32768, now)) << "5 ms of work";
}

/// What would arrive after all else could is not given to a slow rail.
TEST(RailScheduler, ALastChunkTakesTheFastRail) {
  Rails rails({100'000'000, 1'000'000});
  rails.run(milliseconds(500));
  const uint64_t before = rails.carried(1);
  rails.run(milliseconds(90), 32768);
  EXPECT_EQ(rails.carried(1), before);
}

TEST(RailScheduler, ARailThatServesNoMoreIsGivenNothing) {
  Rails rails({50'000'000, 50'000'000});
  rails.run(milliseconds(100));
  rails.serve(0, false);
  const uint64_t before = rails.carried(0);
  rails.run(milliseconds(100));
  EXPECT_EQ(rails.carried(0), before);
  EXPECT_GT(static_cast<double>(rails.run(milliseconds(500))), 0.95 * 50e6 / 2);
}

TEST(RailScheduler, WithoutRailsNothingIsPicked) {
  RailScheduler scheduler;
  std::array<Load, 2> rails{};
  EXPECT_EQ(scheduler.pick(rails, 1000, 1000, begin_at), std::nullopt);
}

/// Else nobody would ever ask again.
TEST(RailScheduler, WhoWaitsWaitsForSomething) {
  Random random(9);
  for (int round = 0; round < 20000; ++round) {
    RailScheduler scheduler;
    std::array<Load, device_rails_max> rails{};
    bool any = false;
    bool open = false;
    for (size_t i = 0; i < rails.size(); ++i) {
      scheduler.begin(i, random.below(10'000'000'000));
      rails[i].serves = random.chance(0.7);
      rails[i].open = random.chance(0.5) ? 0 : random.below(10'000'000);
      if (random.chance(0.5)) {
        scheduler.estimate(i).on_posted(1 + random.below(100000), 0, begin_at);
        scheduler.estimate(i).on_delivered(1 + random.below(100000),
                                           begin_at + microseconds(random.below(5000)));
      }
      any = any || rails[i].serves;
      open = open || (rails[i].serves && rails[i].open != 0);
    }
    const auto bytes = static_cast<uint32_t>(random.below(1 << 20));
    const auto rail = scheduler.pick(rails, bytes, bytes + random.below(1 << 24),
                                     begin_at + microseconds(random.below(500000)));
    EXPECT_TRUE(rail || open || !any);
    EXPECT_TRUE(!rail || rails[*rail].serves);
  }
}

TEST(RailScheduler, ChunksAreSmallWhereRailsAreSlowAndFewWhereTheyAreFast) {
  Rails slow({50'000'000, 50'000'000});
  slow.run(milliseconds(100));
  const std::array<Load, 2> both{Load{true, 0}, Load{true, 0}};
  EXPECT_EQ(slow.scheduler.chunk_bytes(both, 1 << 20, begin_at), RailScheduler::chunk_least);
  RailScheduler fast;
  fast.begin(0, 50'000'000'000);
  fast.begin(1, 50'000'000'000);
  EXPECT_EQ(fast.chunk_bytes(both, 1 << 20, begin_at), 1U << 18);
}

}  // namespace
}  // namespace nccl_ha::ha
