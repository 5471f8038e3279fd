#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "ha/redial.h"

namespace nccl_ha::ha {
namespace {

using Answer = Redial::Answer;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Dials on a clock of its own.
struct Dialling {
  Dialling(size_t ways, size_t first) { redial.begin(ways, first, now); }
  /// What is dialled up to `until`, each for the longest time, without an answer.
  std::vector<size_t> in_the_dark(Duration until, bool proven = false) {
    std::vector<size_t> dialled;
    for (const Instant end = now + until; now < end; now += milliseconds(1)) {
      while (!open.empty() && open.front().ends <= now) {
        EXPECT_FALSE(redial.on_answer(open.front().way, Answer::silence, proven, 0, now));
        open.erase(open.begin());
      }
      while (const auto way = redial.take(now)) {
        open.push_back({*way, now + Redial::longest_dial});
        dialled.push_back(*way);
      }
    }
    return dialled;
  }
  /// The next dial ends so at once.
  bool dies(Answer answer, bool proven, uint64_t life = 0) {
    now = redial.next().value_or(now);
    const auto way = redial.take(now);
    EXPECT_TRUE(way);
    return redial.on_answer(way.value_or(0), answer, proven, life, now);
  }
  struct Open {
    size_t way;
    Instant ends;
  };
  Redial redial;
  std::vector<Open> open;
  Instant now{seconds(100)};
};

TEST(Redial, AllWaysAreDialledBesideEachOtherTheProvenOneFirst) {
  Dialling dialling(3, 1);
  EXPECT_EQ(dialling.in_the_dark(milliseconds(500)), (std::vector<size_t>{1, 2, 0}));
  EXPECT_EQ(dialling.redial.dialled(), 3U);
}

/// A neighbour that is found again a second later finds a dial waiting for it.
TEST(Redial, AWayThatLedToThePeerIsDialledAllTheTime) {
  Dialling dialling(1, 0);
  EXPECT_EQ(dialling.in_the_dark(seconds(10), true).size(), 10U);
}

TEST(Redial, OthersAreDialledAboutFourTimesASecondAllTogether) {
  for (const size_t ways : {1U, 2U, 24U}) {
    Dialling dialling(ways, 0);
    static_cast<void>(dialling.in_the_dark(seconds(20)));
    const size_t dials = dialling.in_the_dark(seconds(60)).size();
    EXPECT_LE(dials, 4 * 60U) << ways;
    EXPECT_GE(dials, std::min<size_t>(ways * 50, 150)) << ways;
  }
}

/// Where most lead nowhere, as from bridges of containers.
TEST(Redial, WaysThatDoNotAnswerHoldTheOthersUpForLessThanASecond) {
  Dialling dialling(24, 0);
  EXPECT_EQ(dialling.in_the_dark(milliseconds(999)).size(), 24U);
}

/// However many there are: none is left out for others that are due again.
TEST(Redial, EachWayHasItsTurn) {
  for (const bool proven : {false, true}) {
    Dialling dialling(64, 5);
    const std::vector<size_t> dialled = dialling.in_the_dark(milliseconds(1599), proven);
    EXPECT_EQ(std::set<size_t>(dialled.begin(), dialled.end()).size(), 64U) << proven;
  }
}

TEST(Redial, ADialFromBeforeItBeganAnewMayGoOn) {
  Dialling dialling(2, 0);
  EXPECT_EQ(dialling.redial.take(dialling.now), 0U);
  dialling.redial.begin(2, 0, dialling.now);
  dialling.redial.keep(0, dialling.now);
  EXPECT_EQ(dialling.redial.take(dialling.now), 1U);
  EXPECT_EQ(dialling.redial.next(), std::nullopt) << "both are being dialled";
}

TEST(Redial, WhatFailsAtOnceIsTriedAgainASecondAfterItsDial) {
  Dialling dialling(1, 0);
  const Instant begin = dialling.now;
  EXPECT_FALSE(dialling.dies(Answer::silence, true));
  EXPECT_EQ(dialling.redial.next(), begin + Redial::usual_wait);
}

TEST(Redial, StaysWhereThePeersHostRefuses) {
  Dialling dialling(2, 0);
  const Instant begin = dialling.now;
  EXPECT_FALSE(dialling.dies(Answer::refused, true)) << "it may be overloaded";
  dialling.now = begin + milliseconds(150);
  EXPECT_EQ(dialling.redial.take(dialling.now), 1U) << "beside the others";
  dialling.now = begin + PeerVerdict::refusals_apart;
  EXPECT_EQ(dialling.redial.take(dialling.now), std::nullopt) << "one after the other";
  EXPECT_TRUE(dialling.dies(Answer::refused, true));
}

TEST(Redial, WhatWasRefusedBeforeItBeganSaysNothing) {
  Dialling dialling(1, 0);
  EXPECT_FALSE(dialling.dies(Answer::refused, true));
  dialling.redial.begin(1, 0, dialling.now + PeerVerdict::refusals_apart);
  EXPECT_FALSE(dialling.dies(Answer::refused, true));
}

TEST(Redial, BeginsAnewWithWhatProvedGood) {
  Dialling dialling(4, 3);
  EXPECT_EQ(dialling.in_the_dark(milliseconds(300)).size(), 2U);
  dialling.redial.begin(5, 4, dialling.now);
  EXPECT_EQ(dialling.redial.dialled(), 0U);
  EXPECT_EQ(dialling.redial.take(dialling.now), 4U);
}

TEST(Redial, APeerThatIsThereIsLeftAloneForAWhile) {
  Dialling dialling(2, 0);
  EXPECT_FALSE(dialling.dies(Answer::present, true));
  dialling.redial.rest(dialling.now);
  EXPECT_EQ(dialling.redial.next(), dialling.now + Redial::usual_wait);
}

}  // namespace
}  // namespace nccl_ha::ha
