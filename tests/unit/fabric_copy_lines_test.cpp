#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "runtime/fabric/datagram/copy.h"

namespace nccl_ha::fabric {
namespace {

TEST(CopyLines, CopiesEveryByteAndNoOther) {
  std::vector<uint8_t> numbers(3 * line_bytes + 2);
  std::iota(numbers.begin(), numbers.end(), uint8_t{1});
  const std::span<const std::byte> from = std::as_bytes(std::span(numbers));
  for (size_t bytes = 0; bytes <= 3 * line_bytes; ++bytes) {
    std::vector<std::byte> to(bytes + 2, std::byte{0xEE});
    copy_lines(to.data() + 1, from.data(), bytes);
    EXPECT_EQ(to.front(), std::byte{0xEE});
    EXPECT_EQ(to.back(), std::byte{0xEE});
    EXPECT_TRUE(std::equal(to.begin() + 1, to.end() - 1, from.begin())) << bytes;
  }
}

}  // namespace
}  // namespace nccl_ha::fabric
