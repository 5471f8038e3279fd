// The data of nccl-ha perf and its check.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "tools/perf/half.h"
#include "tools/perf/pattern.h"

namespace nccl_ha::tools {
namespace {

constexpr uint64_t seed = 7;

std::vector<std::byte> stream(uint32_t rank, uint64_t iteration, size_t offset, size_t bytes,
                              Encoding encoding = {}) {
  std::vector<std::byte> out(bytes);
  fill_stream(out, offset, stream_key(seed, rank, iteration), encoding);
  return out;
}

uint64_t wrong(std::span<const std::byte> buffer, size_t bytes, uint32_t rank, uint64_t iteration,
               CheckResult* out = nullptr) {
  const Checker checker(seed, DataType::uint8, ReduceOp::sum, {});
  CheckResult result;
  checker.check(buffer, {0, bytes, 0, {rank}}, iteration, result);
  if (out != nullptr) {
    *out = result;
  }
  return result.wrong;
}

TEST(Pattern, pieces_of_a_stream_fit_together_at_any_cut) {
  const auto whole = stream(3, 5, 0, 1000);
  for (const size_t cut : {1U, 7U, 8U, 9U, 63U, 500U, 999U}) {
    auto left = stream(3, 5, 0, cut);
    const auto right = stream(3, 5, cut, 1000 - cut);
    left.insert(left.end(), right.begin(), right.end());
    EXPECT_EQ(left, whole) << "cut at " << cut;
  }
}

TEST(Pattern, ranks_iterations_and_seeds_have_unlike_streams) {
  std::set<std::vector<std::byte>> seen;
  for (uint32_t rank = 0; rank < 20; ++rank) {
    for (uint64_t iteration = 0; iteration < 20; ++iteration) {
      seen.insert(stream(rank, iteration, 0, 16));
    }
  }
  EXPECT_EQ(seen.size(), 400U);
  EXPECT_NE(stream_key(1, 0, 0).value, stream_key(2, 0, 0).value);
}

TEST(Check, accepts_the_right_data_and_nothing_else) {
  auto data = stream(1, 4, 0, 10000);
  EXPECT_EQ(wrong(data, data.size(), 1, 4), 0U);
  EXPECT_GT(wrong(data, data.size(), 0, 4), 9000U);  // another rank's
  CheckResult stale;
  EXPECT_GT(wrong(data, data.size(), 1, 5, &stale), 9000U);
  EXPECT_NE(stale.first_finding.find("iteration before"), std::string::npos) << stale.first_finding;
}

TEST(Check, finds_each_single_wrong_byte) {
  auto data = stream(1, 4, 0, 5000);
  for (const size_t at : {0U, 1U, 4095U, 4096U, 4999U}) {
    data[at] ^= std::byte{1};
    CheckResult result;
    EXPECT_EQ(wrong(data, data.size(), 1, 4, &result), 1U);
    EXPECT_EQ(result.first_offset, at);
    data[at] ^= std::byte{1};
  }
  EXPECT_EQ(wrong(data, data.size(), 1, 4), 0U);
}

TEST(Check, finds_shifted_swapped_and_repeated_chunks) {
  const auto good = stream(1, 4, 0, 4096);
  auto shifted = good;
  std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
  EXPECT_GT(wrong(shifted, shifted.size(), 1, 4), 3900U);
  auto swapped = good;
  std::swap_ranges(swapped.begin(), swapped.begin() + 512, swapped.begin() + 1024);
  EXPECT_GT(wrong(swapped, swapped.size(), 1, 4), 900U);
  auto repeated = good;
  std::copy_n(good.begin(), 512, repeated.begin() + 512);
  EXPECT_GT(wrong(repeated, repeated.size(), 1, 4), 450U);
}

class Reduction : public testing::TestWithParam<std::tuple<DataType, ReduceOp>> {};

// The check must agree with what a ring computes, in whatever order it adds.
TEST_P(Reduction, any_order_gives_exactly_the_expected_bytes) {
  const auto [type, op] = GetParam();
  constexpr uint32_t ranks = 5;
  constexpr size_t bytes = 8192;
  const Encoding encoding = encoding_for(type, true, op, ranks);
  std::vector<uint32_t> order{0, 1, 2, 3, 4};
  do {
    auto total = stream(order[0], 9, 0, bytes, encoding);
    for (uint32_t i = 1; i < ranks; ++i) {
      const auto more = stream(order[i], 9, 0, bytes, encoding);
      reduce(total.data(), total.data(), more.data(), bytes, type, op);
    }
    if (op == ReduceOp::avg) {
      finish_average(total, type, ranks);
    }
    const Checker checker(seed, type, op, encoding);
    CheckResult result;
    checker.check(total, {0, bytes, 0, {0, 1, 2, 3, 4}}, 9, result);
    ASSERT_EQ(result.wrong, 0U) << result.first_finding;
    total[100] ^= std::byte{1};
    checker.check(total, {0, bytes, 0, {0, 1, 2, 3, 4}}, 9, result);
    ASSERT_EQ(result.wrong, 1U);
  } while (std::next_permutation(order.begin(), order.begin() + 3));
}

INSTANTIATE_TEST_SUITE_P(
    all, Reduction,
    testing::Combine(testing::Values(DataType::int8, DataType::uint8, DataType::int32,
                                     DataType::uint32, DataType::int64, DataType::uint64,
                                     DataType::half, DataType::bfloat16, DataType::float32,
                                     DataType::float64),
                     testing::Values(ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max,
                                     ReduceOp::avg)),
    [](const auto& parameter) {
      return std::string(to_text(std::get<0>(parameter.param))) + "_" +
             to_text(std::get<1>(parameter.param));
    });

TEST(Reduction, computes_what_the_names_say) {
  const int32_t a[] = {1, -5, INT32_MAX};
  const int32_t b[] = {2, 4, 1};
  int32_t out[3];
  reduce(out, a, b, sizeof(a), DataType::int32, ReduceOp::sum);
  EXPECT_EQ(out[0], 3);
  EXPECT_EQ(out[1], -1);
  EXPECT_EQ(out[2], INT32_MIN);  // wraps
  reduce(out, a, b, sizeof(a), DataType::int32, ReduceOp::min);
  EXPECT_EQ(out[1], -5);
  reduce(out, a, b, sizeof(a), DataType::int32, ReduceOp::max);
  EXPECT_EQ(out[1], 4);
}

TEST(Encoding, sums_of_many_ranks_stay_exact) {
  for (const uint32_t ranks : {2U, 100U, 1000U}) {
    const Encoding encoding = encoding_for(DataType::float32, true, ReduceOp::sum, ranks);
    EXPECT_LE((1ULL << (encoding.bits - 1)) * ranks, 1ULL << 24) << ranks;
  }
  EXPECT_EQ(encoding_for(DataType::float32, false, ReduceOp::sum, 2).kind, Encoding::Kind::raw);
  EXPECT_EQ(encoding_for(DataType::int32, true, ReduceOp::sum, 2).kind, Encoding::Kind::raw);
}

TEST(Encoding, sums_are_exact_up_to_the_number_of_ranks_that_is_told) {
  for (const DataType type : {DataType::half, DataType::bfloat16}) {
    const uint32_t ranks = exact_ranks_max(type);
    const Encoding encoding = encoding_for(type, true, ReduceOp::sum, ranks);
    std::vector<uint32_t> all(ranks);
    std::iota(all.begin(), all.end(), 0U);
    auto total = stream(ranks - 1, 0, 0, 512, encoding);
    for (uint32_t rank = ranks - 1; rank-- > 0;) {
      const auto more = stream(rank, 0, 0, 512, encoding);
      reduce(total.data(), total.data(), more.data(), 512, type, ReduceOp::sum);
    }
    CheckResult result;
    Checker(seed, type, ReduceOp::sum, encoding).check(total, {0, 512, 0, all}, 0, result);
    EXPECT_EQ(result.wrong, 0U) << to_text(type) << ": " << result.first_finding;
  }
  EXPECT_EQ(exact_ranks_max(DataType::half), 1024U);
  EXPECT_EQ(exact_ranks_max(DataType::bfloat16), 128U);
  EXPECT_EQ(exact_ranks_max(DataType::int8), UINT32_MAX);
}

TEST(Encoding, factors_of_many_ranks_neither_overflow_nor_vanish) {
  for (const uint32_t ranks : {2U, 7U, 14U, 15U, 500U}) {
    const Encoding encoding = encoding_for(DataType::half, true, ReduceOp::prod, ranks);
    auto total = stream(0, 0, 0, 4096, encoding);
    for (uint32_t rank = 1; rank < ranks; ++rank) {
      const auto more = stream(rank, 0, 0, 4096, encoding);
      reduce(total.data(), total.data(), more.data(), 4096, DataType::half, ReduceOp::prod);
    }
    for (size_t at = 0; at < total.size(); at += sizeof(Half)) {
      Half value;
      std::memcpy(&value, total.data() + at, sizeof value);
      ASSERT_TRUE(std::isnormal(float{value})) << ranks << " ranks: " << float{value};
    }
  }
}

uint16_t bits_of(Half value) { return std::bit_cast<uint16_t>(value); }

TEST(SixteenBits, every_half_survives_a_float) {
  for (uint32_t bits = 0; bits <= UINT16_MAX; ++bits) {
    const auto half = std::bit_cast<Half>(static_cast<uint16_t>(bits));
    const float wide = half;
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(float{Half(wide)})) << bits;
    } else {
      ASSERT_EQ(bits_of(Half(wide)), bits) << wide;
    }
  }
}

TEST(SixteenBits, numbers_in_between_go_to_the_nearest_and_from_the_middle_to_the_even) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = std::bit_cast<Half>(static_cast<uint16_t>(bits));
    const float high = std::bit_cast<Half>(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(bits_of(Half(middle)), bits + (bits & 1)) << middle;
    ASSERT_EQ(bits_of(Half(std::nextafter(middle, low))), bits) << middle;
    ASSERT_EQ(bits_of(Half(-std::nextafter(middle, high))), (bits + 1) | 0x8000) << middle;
  }
  EXPECT_EQ(bits_of(Half(65519.0F)), 0x7bff);
  EXPECT_TRUE(std::isinf(float{Half(65520.0F)}));
  EXPECT_EQ(float{Bfloat16(1.0F + 0x1p-8F)}, 1.0F);
  EXPECT_EQ(float{Bfloat16(1.0F + 0x1.8p-7F)}, 1.0F + 0x1p-6F);
  EXPECT_TRUE(std::isnan(float{Bfloat16(std::nanf(""))}));
}

TEST(Average, divides_as_nccl_does) {
  int32_t whole[] = {7, -7, 9};
  finish_average(std::as_writable_bytes(std::span(whole)), DataType::int32, 3);
  EXPECT_EQ(whole[0], 2);
  EXPECT_EQ(whole[1], -2);
  EXPECT_EQ(whole[2], 3);
  float numbers[] = {7, -1};
  finish_average(std::as_writable_bytes(std::span(numbers)), DataType::float32, 2);
  EXPECT_EQ(numbers[0], 3.5F);
  EXPECT_EQ(numbers[1], -0.5F);
}

TEST(Names, types_and_reductions_read_back) {
  for (int i = 0; i < data_types; ++i) {
    EXPECT_EQ(parse_type(to_text(static_cast<DataType>(i))), static_cast<DataType>(i));
  }
  for (int i = 0; i < reduce_ops; ++i) {
    EXPECT_EQ(parse_reduce_op(to_text(static_cast<ReduceOp>(i))), static_cast<ReduceOp>(i));
  }
  EXPECT_EQ(parse_type("fp8"), std::nullopt);
  EXPECT_EQ(parse_reduce_op("mulsum"), std::nullopt);
  EXPECT_EQ(reduce_op_names(), "sum, prod, min, max, avg");
}

}  // namespace
}  // namespace nccl_ha::tools
