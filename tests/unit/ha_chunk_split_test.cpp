#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "ha/chunk_split.h"
#include "runtime/base/random.h"

namespace nccl_ha::ha {
namespace {

/// Every byte is in one chunk, all but the last are whole units, and none is empty.
void expect_covered(const ChunkSplit& split, uint32_t size) {
  uint32_t end = 0;
  for (uint32_t chunk = 0; chunk < split.count(); ++chunk) {
    EXPECT_EQ(split.begin(chunk), end);
    EXPECT_NE(split.bytes(chunk), 0U) << "chunk " << chunk << " of " << split.count();
    end += split.bytes(chunk);
    EXPECT_TRUE(chunk + 1 == split.count() || end % ChunkSplit::unit == 0);
  }
  EXPECT_EQ(end, size);
}

TEST(ChunkSplit, AMessageMayBeEmpty) {
  ChunkSplit split;
  split.whole(0);
  EXPECT_EQ(split.count(), 1U);
  EXPECT_EQ(split.bytes(0), 0U);
}

TEST(ChunkSplit, EvenChunksAreAsLargeAsWasAskedOrAsFewAsThereMayBe) {
  Random random(7);
  for (int round = 0; round < 20000; ++round) {
    const auto size = static_cast<uint32_t>(1 + random.below(round % 2 == 0 ? 5000 : UINT32_MAX));
    const auto bytes = static_cast<uint32_t>(random.below(2 * uint64_t{size}));
    ChunkSplit split;
    split.even(size, bytes);
    expect_covered(split, size);
    ASSERT_EQ(split.broken(), nullptr);
    ASSERT_LE(split.count(), ledger_chunks_max);
    const uint32_t first = split.bytes(0);
    EXPECT_GE(first, std::min(size, bytes));
    for (uint32_t chunk = 0; chunk < split.count(); ++chunk) {
      EXPECT_EQ(split.path(chunk), ChunkSplit::any);
      EXPECT_TRUE(chunk + 1 == split.count() || split.bytes(chunk) == first);
    }
    // Not larger than it has to be.
    EXPECT_LT(first, std::max<uint64_t>(bytes, (uint64_t{size} + 15) / 16) + ChunkSplit::unit);
  }
}

TEST(ChunkSplit, WeightsAreKeptToTheNearestUnit) {
  Random random(2);
  for (int round = 0; round < 20000; ++round) {
    const auto size = static_cast<uint32_t>(1 + random.below(round % 2 == 0 ? 5000 : UINT32_MAX));
    std::vector<uint32_t> weights(1 + random.below(ledger_chunks_max));
    for (uint32_t& weight : weights) {
      weight = random.chance(0.2) ? 0 : static_cast<uint32_t>(1 + random.below(1024));
    }
    weights[random.below(weights.size())] = 1;
    ChunkSplit split;
    split.by_weight(size, weights);
    expect_covered(split, size);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<double> got(weights.size());
    for (uint32_t chunk = 0; chunk < split.count(); ++chunk) {
      got[split.path(chunk)] += split.bytes(chunk);
      EXPECT_TRUE(chunk == 0 || split.path(chunk) > split.path(chunk - 1));
    }
    for (size_t path = 0; path < weights.size(); ++path) {
      EXPECT_LE(std::abs(got[path] - double{1} * size * weights[path] / total), ChunkSplit::unit)
          << "size " << size << " path " << path << " of " << weights.size();
      EXPECT_TRUE(weights[path] != 0 || got[path] == 0);
    }
  }
}

TEST(ChunkSplit, EqualWeightsAreEven) {
  ChunkSplit split;
  split.by_weight(1 << 20, std::array{7U, 7U, 7U, 7U});
  ASSERT_EQ(split.count(), 4U);
  for (uint32_t chunk = 0; chunk < 4; ++chunk) {
    EXPECT_EQ(split.bytes(chunk), 1U << 18);
  }
}

}  // namespace
}  // namespace nccl_ha::ha
