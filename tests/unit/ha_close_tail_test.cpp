// ha/close_tail.h: how long a receiver waits for what a sender's last words overtook.
#include <gtest/gtest.h>

#include "ha/close_tail.h"

namespace nccl_ha::test {
namespace {

using ha::CloseTail;
using std::chrono::milliseconds;

constexpr Instant start{std::chrono::seconds(1)};

TEST(HaCloseTail, IsOverAtOnceWhenEverythingCameBefore) {
  CloseTail tail;
  EXPECT_FALSE(tail.under_way());
  tail.begin(7, start);
  EXPECT_TRUE(tail.under_way());
  EXPECT_TRUE(tail.is_over(7, start));
  EXPECT_TRUE(tail.is_over(9, start)) << "more than the sender knows of";
}

TEST(HaCloseTail, WaitsForTheLastGroupAndNotForEver) {
  CloseTail tail;
  tail.begin(7, start);
  EXPECT_FALSE(tail.is_over(6, start));
  EXPECT_FALSE(tail.is_over(6, start + CloseTail::limit - milliseconds(1)));
  EXPECT_TRUE(tail.is_over(7, start + milliseconds(1)));
  EXPECT_TRUE(tail.is_over(6, start + CloseTail::limit));
  tail.end();
  EXPECT_FALSE(tail.under_way());
}

}  // namespace
}  // namespace nccl_ha::test
