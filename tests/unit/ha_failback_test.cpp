#include <gtest/gtest.h>

#include "ha/failback.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Step = Failback::Step;

constexpr Instant failback_start{seconds(100)};

Failback::View both(std::optional<Instant> whole_since) {
  return {.primary = true, .shadow = true, .wanted = true, .whole_since = whole_since};
}
constexpr Failback::View shadow_only{.shadow = true, .wanted = true};
constexpr Failback::View primary_only{.primary = true, .wanted = true, .whole_since = Instant{}};

TEST(Failback, TrafficStaysWithPrimariesThatWork) {
  Failback one(seconds(5));
  EXPECT_EQ(one.look(both(failback_start), failback_start), Step::stay);
  EXPECT_EQ(one.look(both(std::nullopt), failback_start), Step::stay) << "one of several is enough";
  EXPECT_EQ(one.look(primary_only, failback_start), Step::stay);
  EXPECT_FALSE(one.on_shadow());
}

TEST(Failback, NothingMovesToWhatDoesNotWork) {
  Failback one(seconds(5));
  EXPECT_EQ(one.look({.wanted = true}, failback_start), Step::stay);
  ASSERT_EQ(one.look(shadow_only, failback_start), Step::move);
  EXPECT_EQ(one.look({.wanted = true}, failback_start), Step::stay);
  EXPECT_TRUE(one.on_shadow());
}

TEST(Failback, GoesBackOnlyWhenAllPrimariesHaveWorkedForLongEnough) {
  Failback one(seconds(5));
  ASSERT_EQ(one.look(shadow_only, failback_start), Step::move);
  EXPECT_EQ(one.look(both(std::nullopt), failback_start), Step::stay);
  EXPECT_EQ(one.look(both(failback_start), failback_start), Step::later);
  EXPECT_EQ(one.look_at(), failback_start + seconds(5));
  EXPECT_EQ(one.look(both(failback_start), failback_start + seconds(5) - Duration(1)), Step::later);
  EXPECT_TRUE(one.on_shadow());
  EXPECT_EQ(one.look(both(failback_start), failback_start + seconds(5)), Step::move);
  EXPECT_FALSE(one.on_shadow());
}

TEST(Failback, APrimaryThatFailsMeanwhileBeginsItsTimeAnew) {
  Failback one(seconds(5));
  ASSERT_EQ(one.look(shadow_only, failback_start), Step::move);
  EXPECT_EQ(one.look(both(failback_start), failback_start), Step::later);
  EXPECT_EQ(one.look(shadow_only, failback_start + seconds(4)), Step::stay);
  EXPECT_EQ(one.look(both(failback_start + seconds(4)), failback_start + seconds(6)), Step::later);
  EXPECT_EQ(one.look_at(), failback_start + seconds(9));
}

TEST(Failback, AChunkEndsWhereItBegan) {
  Failback one(seconds(5));
  ASSERT_EQ(one.look(shadow_only, failback_start), Step::move);
  Failback::View view = both(failback_start);
  view.between = false;
  EXPECT_EQ(one.look(view, failback_start + seconds(6)), Step::later);
  EXPECT_GT(one.look_at(), failback_start + seconds(6));
  EXPECT_LE(one.look_at(), failback_start + seconds(6) + milliseconds(1));
  EXPECT_TRUE(one.on_shadow());
}

TEST(Failback, GoesBackAtOnceWhenTheShadowFails) {
  Failback one(seconds(5));
  ASSERT_EQ(one.look(shadow_only, failback_start), Step::move);
  EXPECT_EQ(one.look(primary_only, failback_start + milliseconds(1)), Step::move);
  EXPECT_FALSE(one.on_shadow());
}

TEST(Failback, StaysUntilTheShadowFailsIfThatIsWanted) {
  Failback one(seconds(5));
  Failback::View view = shadow_only;
  view.wanted = false;
  ASSERT_EQ(one.look(view, failback_start), Step::move);
  view.primary = true;
  view.whole_since = failback_start;
  EXPECT_EQ(one.look(view, failback_start + seconds(3600)), Step::stay);
  view.shadow = false;
  EXPECT_EQ(one.look(view, failback_start + seconds(3600)), Step::move);
}

TEST(Failback, GivesWayOnceForWhatTheShadowCannotCarry) {
  Failback one(seconds(5));
  one.give_way(failback_start);
  EXPECT_FALSE(one.on_shadow()) << "it was not on the shadow";
  ASSERT_EQ(one.look(shadow_only, failback_start), Step::move);
  one.give_way(failback_start);
  EXPECT_FALSE(one.on_shadow());
}

/// A port that fails as soon as traffic is back; the time after which it was let back each time.
TEST(Failback, FlappingCostsLessAndLess) {
  Failback one(seconds(1));
  Instant now = failback_start;
  for (unsigned round = 0; round <= Failback::doublings_max + 3; ++round) {
    ASSERT_EQ(one.look(shadow_only, now), Step::move);
    const Duration expected = seconds(1) * (1 << std::min(round, Failback::doublings_max));
    EXPECT_EQ(one.after(), expected) << "round " << round;
    const Instant whole = now + milliseconds(300);
    ASSERT_EQ(one.look(both(whole), whole), Step::later);
    EXPECT_EQ(one.look_at(), whole + expected);
    ASSERT_EQ(one.look(both(whole), one.look_at()), Step::move);
    now = one.look_at() + milliseconds(10);
  }
}

TEST(Failback, AReturnThatHeldIsTrustedAgain) {
  Failback one(seconds(1));
  Instant now = failback_start;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(one.look(shadow_only, now), Step::move);
    now += one.after();
    ASSERT_EQ(one.look(both(now - one.after()), now), Step::move);
  }
  EXPECT_EQ(one.after(), seconds(4));
  now += one.after();
  ASSERT_EQ(one.look(shadow_only, now), Step::move);
  EXPECT_EQ(one.after(), seconds(1));
}

}  // namespace
}  // namespace nccl_ha::ha
