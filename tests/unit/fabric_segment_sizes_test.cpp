#include <gtest/gtest.h>

#include "runtime/fabric/datagram/segment_sizes.h"

namespace nccl_ha::fabric {
namespace {

SegmentSizes sizes_for(uint32_t mtu, uint32_t datagram_bytes) {
  SegmentSizes sizes;
  sizes.set_tiny(768);
  sizes.set_mtu(mtu, datagram_bytes - static_cast<uint32_t>(header_bytes));
  return sizes;
}

uint32_t count_of(const SegmentSizes& sizes, uint32_t length) {
  return (length + sizes.plan(length) - 1) / sizes.plan(length);
}

TEST(SegmentSizes, ATinyMessageIsOneSegment) {
  const SegmentSizes sizes = sizes_for(1500, 1472);
  EXPECT_EQ(sizes.mtu(), 1500U);
  for (const uint32_t length : {0U, 1U, 128U, 767U, 768U}) {
    EXPECT_TRUE(sizes.tiny(length));
    EXPECT_GE(sizes.plan(length), length);
  }
  EXPECT_FALSE(sizes.tiny(769));
}

TEST(SegmentSizes, SegmentsFitTheDatagramAndEndOnLines) {
  const SegmentSizes sizes = sizes_for(1500, 1472);
  for (uint32_t length = 769; length < 100'000; length += 97) {
    EXPECT_LE(sizes.plan(length) + header_bytes, 1472U) << length;
    EXPECT_EQ(sizes.plan(length) % line_bytes, 0U) << length;
  }
}

TEST(SegmentSizes, FewSegmentsAreOfEqualLengthAndNotMoreThanNeeded) {
  const SegmentSizes sizes = sizes_for(1500, 1472);
  const uint32_t full = sizes.plan(1'000'000);
  EXPECT_EQ(full, 1408U);
  EXPECT_EQ(sizes.plan(full + 1), 768U) << "two halves";
  for (uint32_t length = 769; length < 8 * full; length += 31) {
    EXPECT_EQ(count_of(sizes, length), (length + full - 1) / full) << length;
  }
}

TEST(SegmentSizes, ManyAreFullWhereTheKernelCutsRunsOfThem) {
  EXPECT_EQ(sizes_for(9000, 8972).plan(100'000), 8832U);
  const SegmentSizes large = sizes_for(65536, 65507);
  EXPECT_LT(large.plan(1'000'000), 65408U) << "runs of those are no run";
  EXPECT_EQ(count_of(large, 1'000'000), 16U);
}

}  // namespace
}  // namespace nccl_ha::fabric
