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

TEST(RouteRounds, SilentOnesComeAgainInTheirOrderAndAreGivenLonger) {
  RouteRounds rounds = three_routes();
  Duration patience = RouteRounds::first_patience;
  for (int round = 0; round < 3; ++round) {
    for (const size_t route : {4, 5, 7}) {
      EXPECT_EQ(rounds.current(), route);
      EXPECT_EQ(rounds.patience(), patience);
      rounds.on_silence();
    }
    patience *= 2;
  }
}

TEST(RouteRounds, OneThatFailedDoesNotComeAgain) {
  RouteRounds rounds = three_routes();
  rounds.on_silence();
  rounds.on_error();
  EXPECT_EQ(rounds.current(), 7U);
  EXPECT_EQ(rounds.patience(), RouteRounds::first_patience) << "7 was not tried yet";
  rounds.on_silence();
  EXPECT_EQ(rounds.current(), 4U);
  EXPECT_EQ(rounds.patience(), 2 * RouteRounds::first_patience);
  EXPECT_TRUE(rounds.any_other());
  rounds.on_error();
  EXPECT_EQ(rounds.current(), 7U);
  EXPECT_FALSE(rounds.any_other());
  rounds.on_error();
  EXPECT_EQ(rounds.current(), std::nullopt);
}

TEST(RouteRounds, ARoundAlsoEndsWithARouteThatFails) {
  RouteRounds rounds = three_routes();
  rounds.on_silence();
  rounds.on_silence();
  rounds.on_error();
  EXPECT_EQ(rounds.current(), 4U);
  EXPECT_EQ(rounds.patience(), 2 * RouteRounds::first_patience);
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

TEST(RouteRounds, WithoutRoutesNothingHappens) {
  RouteRounds rounds;
  rounds.on_error();
  rounds.on_silence();
  EXPECT_EQ(rounds.current(), std::nullopt);
}

}  // namespace
}  // namespace nccl_ha::ha
