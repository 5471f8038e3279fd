// The arithmetic of the emulated kernels, and the lines of protocols LL and LL128.
#include "tests/nccl/emulated/kernels/reduction.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <numeric>
#include <set>
#include <vector>

#include "tests/nccl/emulated/kernels/block.h"
#include "tests/nccl/emulated/kernels/line128.h"

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

/// Sums of three children's values and one's own, as an inner node of a tree has them.
class Tree : public testing::Test {
 protected:
  static constexpr std::array<float, 2> mine{1, 2};
  static constexpr std::array<float, 2> first{10, 20};
  static constexpr std::array<float, 2> second{100, 200};
  static constexpr std::array<float, 2> third{1000, 2000};
  const std::array<const float*, 3> theirs{first.data(), second.data(), third.data()};
};

TEST_F(Tree, AddsWhatAllChildrenSent) {
  const Reduction<float> sum(ncclDevSum, 0);
  std::array<float, 2> up{};
  const std::array<float*, 1> peers{up.data()};
  combine_all<float>(sum, true, mine.data(), theirs, false, peers, nullptr, 2);
  EXPECT_EQ(up, (std::array<float, 2>{1111, 2222}));
  combine_all<float>(sum, true, mine.data(), std::span(theirs).first(2), false, peers, nullptr, 2);
  EXPECT_EQ(up, (std::array<float, 2>{111, 222}));
}

TEST_F(Tree, SendsTheSameToAllChildrenAndTheUser) {
  const Reduction<float> sum(ncclDevSum, 0);
  std::array<float, 2> left{};
  std::array<float, 2> right{};
  std::array<float, 2> user{};
  const std::array<float*, 2> peers{left.data(), right.data()};
  combine_all<float>(sum, true, mine.data(), theirs, true, peers, user.data(), 2);
  EXPECT_EQ(left, (std::array<float, 2>{1111, 2222}));
  EXPECT_EQ(right, left);
  EXPECT_EQ(user, left);
  user = {};
  combine_all<float>(sum, true, mine.data(), theirs, true, {}, user.data(), 2);
  EXPECT_EQ(user, left) << "the user may be the only one to get it";
}

TEST_F(Tree, ScalesAndDividesOnce) {
  const float half = 0.5F;
  uint64_t argument = 0;
  std::memcpy(&argument, &half, sizeof half);
  std::array<float, 2> user{};
  combine_all<float>(Reduction<float>(ncclDevPreMulSum, argument), true, mine.data(), theirs, true,
                     {}, user.data(), 2);
  EXPECT_EQ(user, (std::array<float, 2>{1110.5F, 2221}));
  constexpr uint64_t by_four = 4U << 1;
  const std::array<uint32_t, 1> own{5};
  const std::array<uint32_t, 1> child{7};
  const std::array<const uint32_t*, 2> children{child.data(), child.data()};
  std::array<uint32_t, 1> average{};
  combine_all<uint32_t>(Reduction<uint32_t>(ncclDevSumPostDiv, by_four), true, own.data(), children,
                        true, {}, average.data(), 1);
  EXPECT_EQ(average[0], 4U);
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

class Lines128 : public testing::Test {
 protected:
  Lines128() : pack_(ll128_pack_words), data_(ll128_pack_data), seen_(ll128_pack_data) {
    std::iota(data_.begin(), data_.end(), 1000);
  }
  void write(uint64_t step) {
    write_pack128(pack_.data(), std::span<const uint64_t, ll128_pack_data>(data_), step);
  }
  bool read(uint64_t step) {
    return read_pack128(pack_.data(), step, std::span<uint64_t, ll128_pack_data>(seen_));
  }

  std::vector<uint64_t> pack_;
  std::vector<uint64_t> data_;
  std::vector<uint64_t> seen_;
};

TEST_F(Lines128, AreOf120BytesAndAFlag) {
  EXPECT_EQ(ll128_pack_words * sizeof(uint64_t), 16U * 128);
  EXPECT_EQ(ll128_pack_data * sizeof(uint64_t), 16U * 120);
  std::set<size_t> places(ll128_places().begin(), ll128_places().end());
  EXPECT_EQ(places.size(), ll128_pack_data) << "no two words of data are at the same place";
  EXPECT_LT(*places.rbegin(), ll128_pack_words);
  for (size_t line = 0; line < ll128_pack_lines; ++line) {
    EXPECT_FALSE(places.contains(line * 16 + 15)) << "where the flag of line " << line << " is";
  }
}

TEST_F(Lines128, HaveTheOrderOfAWarp) {
  // The threads of the first 4 lines: 2 words each, but every 8th one's second word is a flag.
  EXPECT_EQ(ll128_places()[0], 0U);
  EXPECT_EQ(ll128_places()[14], 14U);
  EXPECT_EQ(ll128_places()[15], 14U + 64) << "what the flag displaces is 4 lines further";
  EXPECT_EQ(ll128_places()[16], 16U);
  EXPECT_EQ(ll128_places()[64], 64U) << "the next 4 lines go on behind that";
  EXPECT_EQ(ll128_places()[64 + 14], 80U) << "and leave out what is there already";
  EXPECT_EQ(ll128_places()[120], 128U);
}

TEST_F(Lines128, AreReadForTheirOwnStepOnly) {
  write(5);
  EXPECT_FALSE(read(4));
  EXPECT_FALSE(read(6));
  ASSERT_TRUE(read(5));
  EXPECT_EQ(seen_, data_);
}

TEST_F(Lines128, AreThereWhenTheLastFlagIs) {
  write(5);
  for (size_t line = 0; line < ll128_pack_lines; ++line) {
    write(6);
    pack_[line * 16 + 15] = 5;
    EXPECT_FALSE(read(6)) << "line " << line;
  }
  write(6);
  EXPECT_TRUE(read(6));
}

}  // namespace
}  // namespace nccl_ha::emulated
