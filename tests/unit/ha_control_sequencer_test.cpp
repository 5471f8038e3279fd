#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "actors/control.h"
#include "ha/control_sequencer.h"
#include "runtime/base/random.h"

namespace nccl_ha::ha {
namespace {

using Verdict = ControlSequencer::Verdict;

TEST(ControlSequencer, TakesEachNumberOnceAndInOrder) {
  ControlSequencer sequencer;
  EXPECT_EQ(sequencer.judge(2), Verdict::gap);
  EXPECT_EQ(sequencer.judge(1), Verdict::take);
  EXPECT_EQ(sequencer.judge(1), Verdict::seen);
  EXPECT_EQ(sequencer.judge(2), Verdict::take);
  EXPECT_EQ(sequencer.expected(), 3U);
}

TEST(ControlSequencer, KeepsWhatIsNotConfirmed) {
  ControlSequencer sequencer;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(sequencer.add({std::byte(i)}));
  }
  EXPECT_FALSE(sequencer.confirmed(5)) << "never sent";
  EXPECT_TRUE(sequencer.confirmed(3));
  EXPECT_EQ(sequencer.first_open(), 3U);
  EXPECT_EQ(sequencer.next(), 4U);
  EXPECT_EQ(sequencer.frame(3)[0], std::byte{2});
  EXPECT_TRUE(sequencer.confirmed(1)) << "an old confirmation changes nothing";
  EXPECT_EQ(sequencer.first_open(), 3U);
}

TEST(ControlSequencer, LowBitsOfAConfirmationAreEnough) {
  ControlSequencer sequencer;
  for (uint32_t number = 1; number < 70000; ++number) {
    ASSERT_TRUE(sequencer.add({}));
    sequencer.confirmed_low(static_cast<uint16_t>(number));  // one stays open
    ASSERT_EQ(sequencer.first_open(), number);
  }
  const uint32_t first = sequencer.first_open();
  sequencer.confirmed_low(static_cast<uint16_t>(first - 100));
  EXPECT_EQ(sequencer.first_open(), first);
}

TEST(ControlSequencer, AFloodIsRefused) {
  ControlSequencer sequencer;
  for (size_t i = 0; i < ControlSequencer::open_max; ++i) {
    ASSERT_TRUE(sequencer.add({}));
  }
  EXPECT_FALSE(sequencer.add({}));
}

/// A way that loses everything after some message, and may come up again.
struct Way {
  std::deque<uint32_t> under_way;
  bool up = true;
};

TEST(ControlSequencer, EveryMessageArrivesOnceWhateverWaysComeAndGo) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    ControlSequencer sender;
    ControlSequencer receiver;
    std::array<Way, 3> ways;
    std::vector<uint32_t> taken;
    uint32_t sent = 0;
    constexpr uint32_t total = 60;
    for (int step = 0; step < 20000 && taken.size() < total; ++step) {
      Way& way = ways[random.below(ways.size())];
      switch (random.below(5)) {
        case 0:
          if (sent < total && sender.next() - sender.first_open() < 20) {
            ASSERT_TRUE(sender.add({}));
            ++sent;
            for (Way& each : ways) {
              if (each.up) {
                each.under_way.push_back(sender.next() - 1);
              }
            }
          }
          break;
        case 1:
          if (random.chance(0.2) && way.up) {
            way.up = false;
            way.under_way.clear();
          } else if (!way.up) {
            way.up = true;
            for (uint32_t number = sender.first_open(); number != sender.next(); ++number) {
              way.under_way.push_back(number);
            }
          }
          break;
        case 2:
          ASSERT_TRUE(sender.confirmed(receiver.expected()));
          break;
        default:
          if (!way.under_way.empty()) {
            const uint32_t number = way.under_way.front();
            way.under_way.pop_front();
            const Verdict verdict = receiver.judge(number);
            ASSERT_NE(verdict, Verdict::gap) << "seed " << seed;
            if (verdict == Verdict::take) {
              taken.push_back(number);
            }
          }
      }
    }
    ASSERT_EQ(taken.size(), total) << "seed " << seed;
    for (uint32_t i = 0; i < total; ++i) {
      ASSERT_EQ(taken[i], i + 1) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace nccl_ha::ha
