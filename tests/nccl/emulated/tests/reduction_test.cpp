// The arithmetic of the emulated kernels, and the lines of protocol LL.
#include "tests/nccl/emulated/kernels/reduction.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "tests/nccl/emulated/kernels/block.h"

namespace nccl_ha::emulated {

// Of the kernels only headers are here.
void give_up(const char*) { std::abort(); }

namespace {

TEST(Reduction, SumsWrapAsTheTypeDoes) {
  const Reduction<uint8_t> sum(ncclDevSum, 0);
  EXPECT_EQ(sum.both(250, 10), 4);
  const Reduction<uint32_t> wide(ncclDevSum, 0);
  EXPECT_EQ(wide.both(static_cast<uint32_t>(-3), 5), 2U);
}

TEST(Reduction, MinimumAndMaximumOfIntegersGoByAMask) {
  // NCCL asks for a minimum; the mask turns the order round, and moves the sign.
  const auto both = [](uint32_t mask, int a, int b) {
    const Reduction<uint32_t> reduction(ncclDevMinMax, mask);
    return static_cast<int>(reduction.both(static_cast<uint32_t>(a), static_cast<uint32_t>(b)));
  };
  EXPECT_EQ(both(0, 3, 9), 3);
  EXPECT_EQ(both(0xffffffffU, 3, 9), 9);
  EXPECT_EQ(both(0x80000000U, -3, 9), -3);
  EXPECT_EQ(both(0x7fffffffU, -3, 9), 9);
  EXPECT_EQ(both(0x7fffffffU, -3, -9), -3);
}

TEST(Reduction, MinimumAndMaximumOfFractions) {
  EXPECT_EQ(Reduction<float>(ncclDevMinMax, 0).both(-1.5F, 2), -1.5F);
  EXPECT_EQ(Reduction<float>(ncclDevMinMax, 1).both(-1.5F, 2), 2);
}

TEST(Reduction, AnAverageOfIntegersIsDividedTowardsZero) {
  constexpr uint64_t by_four = 4U << 1;
  EXPECT_EQ(Reduction<uint32_t>(ncclDevSumPostDiv, by_four).after(11), 2U);
  const Reduction<uint32_t> with_sign(ncclDevSumPostDiv, by_four | 1);
  EXPECT_EQ(static_cast<int>(with_sign.after(static_cast<uint32_t>(-11))), -2);
  EXPECT_EQ(Reduction<uint8_t>(ncclDevSumPostDiv, by_four).after(240), 60);
}

TEST(Reduction, AnAverageOfFractionsIsScaledAtTheInput) {
  const float half = 0.5F;
  uint64_t argument = 0;
  std::memcpy(&argument, &half, sizeof half);
  const Reduction<float> average(ncclDevPreMulSum, argument);
  const std::array<float, 3> mine{1, 2, 3};
  const std::array<float, 3> theirs{10, 20, 30};
  std::array<float, 3> peer{};
  std::array<float, 3> user{};
  combine(average, true, mine.data(), theirs.data(), true, peer.data(), user.data(), 3);
  EXPECT_EQ(user, (std::array<float, 3>{10.5F, 21, 31.5F}));
  EXPECT_EQ(peer, user);
  combine<float>(average, true, mine.data(), nullptr, false, peer.data(), nullptr, 3);
  EXPECT_EQ(peer, (std::array<float, 3>{0.5F, 1, 1.5F}));
  combine<float>(average, false, nullptr, theirs.data(), false, nullptr, user.data(), 3);
  EXPECT_EQ(user, theirs) << "what comes from a peer is scaled already";
}

TEST(Lines, AreReadForTheirOwnStepOnly) {
  ncclLLFifoLine line{};
  uint64_t data = 0;
  write_line(&line, 0x1122334455667788U, 5);
  EXPECT_FALSE(read_line(&line, 4, &data));
  EXPECT_FALSE(read_line(&line, 6, &data));
  ASSERT_TRUE(read_line(&line, 5, &data));
  EXPECT_EQ(data, 0x1122334455667788U);
}

TEST(Lines, AreWholeOrNotThere) {
  ncclLLFifoLine line{};
  uint64_t data = 0;
  write_line(&line, 1, 5);
  const uint64_t second = line.v[1];
  write_line(&line, 2, 6);
  line.v[1] = second;  // as a NIC may write it: the first half before the second one
  EXPECT_FALSE(read_line(&line, 6, &data));
  EXPECT_FALSE(read_line(&line, 5, &data));
}

}  // namespace
}  // namespace nccl_ha::emulated
