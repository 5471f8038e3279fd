#include <gtest/gtest.h>

#include "ha/route_rounds.h"

namespace nccl_ha::ha {
namespace {

RouteRounds three_routes() {
  RouteRounds rounds;
  for (const size_t route : {4, 5, 7}) {
    rounds.add(route);
  }
  return rounds;
}

TEST(RouteRounds, SilentOnesComeAgainInTheirOrder) {
  RouteRounds rounds = three_routes();
  for (int round = 0; round < 3; ++round) {
    for (const size_t route : {4, 5, 7}) {
      EXPECT_EQ(rounds.current(), route);
      rounds.on_silence();
    }
  }
}

TEST(RouteRounds, OneThatFailedDoesNotComeAgain) {
  RouteRounds rounds = three_routes();
  rounds.on_silence();
  rounds.on_error();
  EXPECT_EQ(rounds.current(), 7U);
  rounds.on_silence();
  EXPECT_EQ(rounds.current(), 4U);
  EXPECT_TRUE(rounds.any_other());
  rounds.on_error();
  EXPECT_EQ(rounds.current(), 7U);
  EXPECT_FALSE(rounds.any_other());
  rounds.on_error();
  EXPECT_EQ(rounds.current(), std::nullopt);
}

/// All have been tried then, and the next dial waits.
TEST(RouteRounds, ARoundAlsoEndsWithARouteThatFails) {
  RouteRounds rounds = three_routes();
  Random random(1);
  EXPECT_EQ(rounds.on_unreachable(random), Duration(0));
  EXPECT_EQ(rounds.on_unreachable(random), Duration(0));
  rounds.on_error();
  EXPECT_EQ(rounds.current(), 4U);
  EXPECT_EQ(rounds.on_unreachable(random), Duration(0)) << "5 is tried at once";
  EXPECT_EQ(rounds.on_unreachable(random), Duration(0)) << "the first pause is none";
  EXPECT_EQ(rounds.on_unreachable(random), Duration(0)) << "5 is tried at once";
  EXPECT_GT(rounds.on_unreachable(random), Duration(0)) << "both have been tried again";
}

TEST(RouteRounds, WithoutARouteForLongIsCountedFromWhenTheNetworkLastWasThere) {
  RouteRounds rounds;
  rounds.add(0);
  const Instant begin{std::chrono::seconds(100)};
  EXPECT_TRUE(rounds.may_pass(ENETUNREACH, begin));
  EXPECT_TRUE(rounds.may_pass(EHOSTUNREACH, begin + std::chrono::seconds(1)));
  EXPECT_TRUE(rounds.may_pass(ENETUNREACH, begin + std::chrono::seconds(10))) << "anew";
  EXPECT_TRUE(rounds.may_pass(ENETUNREACH, begin + std::chrono::seconds(12)));
  EXPECT_FALSE(rounds.may_pass(ENETUNREACH, begin + std::chrono::milliseconds(12001)));
}

TEST(RouteRounds, ARouteThatHasLedToThePeerIsOnlyAway) {
  RouteRounds rounds;
  rounds.add(0);
  const Instant begin{std::chrono::seconds(100)};
  rounds.on_open();
  EXPECT_TRUE(rounds.may_pass(EADDRNOTAVAIL, begin));
  EXPECT_TRUE(rounds.may_pass(EADDRNOTAVAIL, begin + std::chrono::seconds(25)));
  EXPECT_FALSE(rounds.may_pass(ECONNREFUSED, begin));
}

TEST(RouteRounds, WithoutRoutesNothingHappens) {
  RouteRounds rounds;
  rounds.on_error();
  rounds.on_silence();
  EXPECT_EQ(rounds.current(), std::nullopt);
}

}  // namespace
}  // namespace nccl_ha::ha
