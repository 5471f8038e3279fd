#include <gtest/gtest.h>

#include "ha/announcement_batch.h"

namespace nccl_ha::ha {
namespace {

TEST(AnnouncementBatch, ANewReceiveIsAnnouncedWhileTheSenderHasFewPlaces) {
  AnnouncementBatch batch(64, 8);
  EXPECT_FALSE(batch.due_after_post(0)) << "there is nothing";
  batch.stage(1);
  EXPECT_TRUE(batch.due_after_post(1));
  EXPECT_TRUE(batch.due_after_post(AnnouncementBatch::announced_ahead));
  EXPECT_FALSE(batch.due_after_post(AnnouncementBatch::announced_ahead + 1));
}

TEST(AnnouncementBatch, ThoseThatAreHeldAreNoPlacesOfTheSender) {
  AnnouncementBatch batch(64, 8);
  batch.stage(1);
  batch.stage(2);
  batch.stage(1);
  EXPECT_TRUE(batch.due_after_post(6));
  EXPECT_FALSE(batch.due_after_post(7));
  const auto held = batch.take();
  EXPECT_EQ(held.groups, 3U);
  EXPECT_EQ(held.entries, 4U);
  EXPECT_TRUE(batch.empty());
  EXPECT_FALSE(batch.due_after_post(1));
}

TEST(AnnouncementBatch, AnArrivalAnnouncesLater) {
  AnnouncementBatch batch(64, 8);
  batch.stage(1);
  EXPECT_FALSE(batch.due_after_arrival(AnnouncementBatch::announced_least + 1));
  EXPECT_TRUE(batch.due_after_arrival(AnnouncementBatch::announced_least));
}

/// With many open ones half of them is enough.
TEST(AnnouncementBatch, HalfOfWhatIsOpenMayBeHeld) {
  AnnouncementBatch batch(64, 8);
  for (int i = 0; i < 16; ++i) {
    batch.stage(1);
    EXPECT_FALSE(batch.due_after_post(32)) << i;
  }
  batch.stage(1);
  EXPECT_TRUE(batch.due_after_post(32));
}

TEST(AnnouncementBatch, IsFullWhenAnotherGroupMayNotFit) {
  AnnouncementBatch batch(20, 8);
  batch.stage(8);
  EXPECT_FALSE(batch.full());
  batch.stage(4);
  EXPECT_FALSE(batch.full());
  batch.stage(1);
  EXPECT_TRUE(batch.full());
  batch.forget();
  EXPECT_FALSE(batch.full());
  EXPECT_TRUE(batch.empty());
}

}  // namespace
}  // namespace nccl_ha::ha
