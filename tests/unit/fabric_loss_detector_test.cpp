#include <gtest/gtest.h>

#include "runtime/fabric/datagram/loss_detector.h"

namespace nccl_ha::fabric {
namespace {

TEST(LossDetector, ThreeLaterOnesOfTheChannelMeanALoss) {
  LossDetector losses;
  const uint64_t first = losses.on_sent(Channel::data);
  const uint64_t tiny = losses.on_sent(Channel::command);
  uint64_t last = first;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(losses.lost(Channel::data, first));
    last = losses.on_sent(Channel::data);
    losses.on_arrived(Channel::data, last);
  }
  EXPECT_TRUE(losses.lost(Channel::data, first));
  EXPECT_FALSE(losses.lost(Channel::data, last - 2));
  EXPECT_FALSE(losses.lost(Channel::command, tiny)) << "channels overtake each other";
  losses.on_arrived(Channel::data, first);
  EXPECT_TRUE(losses.lost(Channel::data, first)) << "the newest counts, not the last";
}

TEST(LossDetector, EachThatWasLateLetsOneMoreOvertake) {
  LossDetector losses;
  losses.on_late();
  losses.on_late();
  const uint64_t first = losses.on_sent(Channel::data);
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(losses.lost(Channel::data, first)) << i;
    losses.on_arrived(Channel::data, losses.on_sent(Channel::data));
  }
  EXPECT_TRUE(losses.lost(Channel::data, first));
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(losses.on_duplicate()) << i;
  }
  EXPECT_TRUE(losses.on_duplicate());
  for (int i = 0; i < 1000; ++i) {
    losses.on_late();
  }
  const uint64_t last = losses.on_sent(Channel::data);
  losses.on_arrived(Channel::data, last + LossDetector::reorder_max - 1);
  EXPECT_FALSE(losses.lost(Channel::data, last));
  losses.on_arrived(Channel::data, last + LossDetector::reorder_max);
  EXPECT_TRUE(losses.lost(Channel::data, last)) << "bounded";
}

TEST(LossDetector, ATimeoutForgetsThatTheNetworkReorders) {
  LossDetector losses;
  losses.on_late();
  losses.on_timeout();
  const uint64_t first = losses.on_sent(Channel::data);
  losses.on_arrived(Channel::data, first + LossDetector::reorder_threshold);
  EXPECT_TRUE(losses.lost(Channel::data, first));
}

TEST(LossDetector, DuplicatesAreCountedBetweenAcknowledgements) {
  LossDetector losses;
  EXPECT_FALSE(losses.on_duplicate());
  EXPECT_FALSE(losses.on_duplicate());
  losses.on_progress();
  EXPECT_FALSE(losses.on_duplicate());
  EXPECT_FALSE(losses.on_duplicate());
  EXPECT_TRUE(losses.on_duplicate());
  EXPECT_FALSE(losses.on_duplicate());
}

}  // namespace
}  // namespace nccl_ha::fabric
