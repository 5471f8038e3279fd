#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "ha/refusal_excuse.h"

namespace nccl_ha::ha {
namespace {

/// Lanes with a path each; a new path has the next epoch.
struct RefusedLanes {
  std::vector<uint32_t> epochs{0, 0, 1};
  uint64_t done = 7;
  RefusalExcuse excuses;
  bool refused(size_t lane) { return excuses.excuse(lane, epochs, done); }
  void replace(size_t lane) { ++epochs[lane]; }
};

TEST(RefusalExcuse, TheFirstOneAndThoseOfPathsThatThereWereByThenAreExcused) {
  RefusedLanes lanes;
  for (const size_t lane : {1, 0, 2}) {
    EXPECT_TRUE(lanes.refused(lane)) << lane << ": one removal meets all paths of a device";
  }
}

TEST(RefusalExcuse, OnAPathThatWasMadeSinceItIsFinal) {
  RefusedLanes lanes;
  EXPECT_TRUE(lanes.refused(0));
  lanes.replace(0);
  EXPECT_FALSE(lanes.refused(0));
  lanes.replace(2);
  EXPECT_FALSE(lanes.refused(2)) << "whichever lane it is";
  EXPECT_TRUE(lanes.refused(1)) << "it is as old as the first one";
  lanes.epochs.push_back(1);
  EXPECT_FALSE(lanes.refused(3)) << "a lane that there was not by then";
}

TEST(RefusalExcuse, ATransferThatWasDoneMeanwhileMakesItAnotherRemoval) {
  RefusedLanes lanes;
  EXPECT_TRUE(lanes.refused(0));
  lanes.replace(0);
  ++lanes.done;
  EXPECT_TRUE(lanes.refused(0));
  EXPECT_TRUE(lanes.refused(2)) << "with those that there are now";
  lanes.replace(2);
  EXPECT_FALSE(lanes.refused(2));
}

/// A message that no path takes, beside others that all take.
TEST(RefusalExcuse, AWrongKeyEndsWithTheTransfersBesideIt) {
  RefusedLanes lanes;
  size_t refusals = 0;
  for (size_t beside = 5; lanes.refused(refusals % 3); ++refusals) {
    lanes.replace(refusals % 3);
    lanes.done += beside != 0 ? 1 : 0;
    beside -= beside != 0 ? 1 : 0;
    ASSERT_LT(refusals, 20U);
  }
  EXPECT_GE(refusals, 5U);
}

}  // namespace
}  // namespace nccl_ha::ha
