#include <gtest/gtest.h>

#include "ha/backoff.h"

namespace nccl_ha::ha {
namespace {

TEST(Backoff, BeginsAtOnceGrowsAndStaysBelowItsLimit) {
  using std::chrono::milliseconds;
  Random random(1);
  Backoff backoff(milliseconds(20), milliseconds(1000));
  EXPECT_EQ(backoff.next(random), Duration(0));
  Duration base = milliseconds(20);
  for (int i = 0; i < 12; ++i) {
    const Duration wait = backoff.next(random);
    EXPECT_GE(wait, base / 2) << i;
    EXPECT_LE(wait, base) << i;
    base = std::min<Duration>(base * 2, milliseconds(1000));
  }
  EXPECT_EQ(base, Duration(milliseconds(1000)));
  backoff.reset();
  EXPECT_EQ(backoff.next(random), Duration(0));
  EXPECT_LE(backoff.next(random), milliseconds(20)) << "what was before counts no more";
}

}  // namespace
}  // namespace nccl_ha::ha
