#include <gtest/gtest.h>

#include <cmath>

#include "ha/rail_policy.h"
#include "runtime/base/random.h"

namespace nccl_ha::ha {
namespace {

TEST(RailPolicy, VanillaModeLooksAtTheIslandOnly) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 30}) {
    EXPECT_EQ(supplementary_parts({bytes, RailMode::isolated, PathClass::intra_island, 1000, 7}),
              1024U);
    EXPECT_EQ(supplementary_parts({bytes, RailMode::isolated, PathClass::inter_island, 1000, 7}),
              0U);
  }
}

TEST(RailPolicy, AdvancedModeFollowsTheHint) {
  for (const uint32_t hint : {0U, 1U, 512U, 1023U, 1024U}) {
    EXPECT_EQ(supplementary_parts({5000, RailMode::hinted, PathClass::intra_island, 1 << 20, hint}),
              hint);
  }
  EXPECT_EQ(supplementary_parts({5000, RailMode::hinted, PathClass::intra_island, 0, UINT32_MAX}),
            1024U)
      << "a hint beyond all of it is all of it";
}

TEST(RailPolicy, SmallMessagesBetweenIslandsTakeTheDirectWay) {
  EXPECT_EQ(supplementary_parts({1000, RailMode::hinted, PathClass::inter_island, 1000, 512}), 0U);
  EXPECT_EQ(supplementary_parts({1001, RailMode::hinted, PathClass::inter_island, 1000, 512}),
            512U);
  EXPECT_EQ(
      supplementary_parts({1000, RailMode::hinted, PathClass::inter_island, 1000, std::nullopt}),
      0U)
      << "without a hint too";
}

TEST(RailPolicy, WithoutAHintMeasurementsDecide) {
  EXPECT_EQ(
      supplementary_parts({5000, RailMode::hinted, PathClass::intra_island, 1000, std::nullopt}),
      std::nullopt);
  EXPECT_EQ(supplementary_parts({5000, RailMode::balanced, PathClass::inter_island, 1000, 512}),
            std::nullopt);
}

bool next(ShareAccumulator& shares, uint32_t parts, uint32_t bytes) {
  const bool supplementary = shares.next(parts, bytes);
  EXPECT_EQ(shares.next(parts, bytes), supplementary) << "asking has changed the answer";
  shares.take(parts, bytes);
  return supplementary;
}

TEST(ShareAccumulator, PiecesOfAnySizeComeToTheShare) {
  Random random(3);
  for (const uint32_t parts : {0U, 1U, 100U, 256U, 512U, 1000U, 1023U, 1024U}) {
    ShareAccumulator shares;
    double all = 0;
    double supplementary = 0;
    uint32_t largest = 0;
    for (int i = 0; i < 5000; ++i) {
      const auto bytes = static_cast<uint32_t>(1 + random.below(1 << 20));
      largest = std::max(largest, bytes);
      all += bytes;
      supplementary += next(shares, parts, bytes) ? bytes : 0;
      // At every moment within a piece of what it should be.
      ASSERT_LE(std::abs(supplementary - all * parts / 1024), largest) << parts << " parts";
    }
  }
}

TEST(ShareAccumulator, EqualPiecesAreInterleaved) {
  ShareAccumulator shares;
  std::string turns;
  for (int i = 0; i < 16; ++i) {
    turns += next(shares, 256, 4096) ? 'u' : 'o';
  }
  EXPECT_EQ(turns, "ouooouooouooouoo");
}

TEST(ShareAccumulator, AHintOfNothingIsHeededByTheNextPiece) {
  ShareAccumulator shares;
  static_cast<void>(next(shares, 500, 1 << 20));
  EXPECT_FALSE(next(shares, 0, 100));
  EXPECT_FALSE(next(shares, 0, 1 << 20));
  EXPECT_TRUE(next(shares, 1024, 100));
  EXPECT_FALSE(next(shares, 0, 100));
}

}  // namespace
}  // namespace nccl_ha::ha
