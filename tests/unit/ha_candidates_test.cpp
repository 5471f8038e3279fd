#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ha/candidates.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::seconds;
using End = ShadowCandidates::End;

constexpr Instant candidates_start{seconds(100)};
constexpr Duration first_wait = ShadowCandidates::forget_after;

/// Two ends here, two there, best first.
ShadowCandidates four() { return ShadowCandidates({{1, 1}, {2, 2}, {1, 2}, {2, 1}}, 2); }

TEST(ShadowCandidates, ThePairAtHandStaysUntilItIsPassedOver) {
  ShadowCandidates candidates = four();
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  for (const RailPair& next : {RailPair{2, 2}, RailPair{1, 2}, RailPair{2, 1}, RailPair{1, 1}}) {
    candidates.pass_over(0);
    EXPECT_EQ(candidates.choose(0, candidates_start), next);
  }
  candidates.pass_over(0);
  candidates.begin_anew(0);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
}

TEST(ShadowCandidates, NonePassesOverToNothing) {
  ShadowCandidates none({}, 1);
  EXPECT_FALSE(none.any_better(0, {}, candidates_start, [](const auto&) { return true; }));
  none.pass_over(0);
  EXPECT_EQ(none.choose(0, candidates_start), std::nullopt);
}

TEST(ShadowCandidates, ABetterPairIsOneThatTheShadowCouldTake) {
  ShadowCandidates candidates = four();
  const auto any = [](const RailPair&) { return true; };
  EXPECT_FALSE(candidates.any_better(0, {1, 1}, candidates_start, any));
  EXPECT_TRUE(candidates.any_better(0, {2, 2}, candidates_start, any));
  const auto is_second = [](const RailPair& pair) { return pair == RailPair{2, 2}; };
  EXPECT_FALSE(candidates.any_better(0, {2, 2}, candidates_start, is_second));
  EXPECT_TRUE(candidates.any_better(0, {2, 1}, candidates_start, is_second));
  candidates.reject(End::local, 2, candidates_start);
  EXPECT_FALSE(candidates.any_better(0, {2, 1}, candidates_start, is_second));
  EXPECT_EQ(candidates.choose(1, candidates_start), (RailPair{1, 1}));
  EXPECT_TRUE(candidates.any_better(0, {2, 1}, candidates_start, any)) << "over 1 to 2";
  EXPECT_FALSE(candidates.any_better(0, {1, 2}, candidates_start, any)) << "the other tries it";
  candidates.worked(1);
  EXPECT_FALSE(candidates.any_better(0, {2, 1}, candidates_start, any)) << "the other has its end";
}

/// Either stands by over a NIC of the only pair that works when both are out.
TEST(ShadowCandidates, TwoThatFindNothingLeaveTheFirstOneThePairThatBothNeed) {
  ShadowCandidates candidates({{1, 1}, {0, 1}, {1, 0}}, 2);
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  candidates.pass_over(0);
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{0, 1}));
  candidates.worked(0);
  ASSERT_EQ(candidates.choose(1, candidates_start), (RailPair{1, 0}));
  candidates.worked(1);
  for (const size_t shadow : {0U, 1U}) {
    candidates.ended(shadow);
    candidates.begin_sweeps(shadow);
  }
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{0, 1}));
  ASSERT_EQ(candidates.choose(1, candidates_start), (RailPair{1, 0}));
  for (int attempt = 0; attempt < 2; ++attempt) {
    candidates.pass_over(0, true);
    EXPECT_EQ(candidates.sweeps_on(0, candidates_start, true), attempt == 0);
    if (attempt == 0) {
      EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{0, 1})) << "the other tries 1";
    }
  }
  EXPECT_FALSE(candidates.lost(1));
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  EXPECT_TRUE(candidates.lost(1));
  EXPECT_EQ(candidates.choose(1, candidates_start), std::nullopt) << "all share an end with it";
  EXPECT_EQ(candidates.broken(), nullptr);
}

TEST(ShadowCandidates, WhatWorksIsTakenFromNobodyWhoHasFoundNothing) {
  ShadowCandidates candidates({{1, 1}, {2, 2}, {1, 2}}, 2);
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  ASSERT_EQ(candidates.choose(1, candidates_start), (RailPair{2, 2}));
  candidates.worked(1);
  for (int attempt = 0; attempt < 9; ++attempt) {
    candidates.pass_over(0);
    static_cast<void>(candidates.sweeps_on(0, candidates_start, false));
    EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  }
  EXPECT_FALSE(candidates.lost(1));
}

/// The first one tries in vain what the second one leaves it.
TEST(ShadowCandidates, WhoLooksForABetterPairTakesWhatAnotherMerelyTries) {
  ShadowCandidates candidates({{1, 1}, {1, 0}, {0, 1}}, 2);
  const auto any = [](const RailPair&) { return true; };
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  candidates.pass_over(0);
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 0}));
  ASSERT_EQ(candidates.choose(1, candidates_start), (RailPair{0, 1}));
  candidates.worked(1);
  ASSERT_TRUE(candidates.any_better(1, {0, 1}, candidates_start, any));
  candidates.begin_anew(1);
  candidates.ended(1);
  EXPECT_EQ(candidates.choose(1, candidates_start), (RailPair{1, 1}));
  EXPECT_TRUE(candidates.lost(0));
  candidates.pass_over(0);
  static_cast<void>(candidates.sweeps_on(0, candidates_start, false));
  EXPECT_EQ(candidates.choose(0, candidates_start), std::nullopt) << "it has it for its attempt";
  candidates.worked(1);
  EXPECT_EQ(candidates.broken(), nullptr);
}

TEST(ShadowCandidates, ARejectedEndTakesAllItsPairsWithIt) {
  ShadowCandidates candidates = four();
  EXPECT_TRUE(candidates.reject(End::remote, 1, candidates_start));
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{2, 2}));
  candidates.pass_over(0);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 2}));
  candidates.pass_over(0);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{2, 2})) << "over 2 to 1 and 1 to 1";
  EXPECT_TRUE(candidates.reject(End::local, 2, candidates_start));
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 2}));
}

TEST(ShadowCandidates, WhenAllAreRejectedTheFirstToBeForgottenIsWaitedFor) {
  ShadowCandidates candidates = four();
  candidates.reject(End::local, 1, candidates_start);
  candidates.reject(End::local, 2, candidates_start + seconds(5));
  EXPECT_EQ(candidates.choose(0, candidates_start + seconds(6)), std::nullopt);
  EXPECT_EQ(candidates.next_at(candidates_start + seconds(6)), candidates_start + first_wait);
  EXPECT_EQ(candidates.choose(0, candidates_start + first_wait - Duration(1)), std::nullopt);
  EXPECT_EQ(candidates.choose(0, candidates_start + first_wait), (RailPair{1, 1}));
}

TEST(ShadowCandidates, WhatIsRejectedAgainIsLeftAloneForLonger) {
  ShadowCandidates candidates({{1, 1}}, 1);
  Instant now = candidates_start;
  Duration wait = first_wait;
  EXPECT_TRUE(candidates.reject(End::remote, 1, now));
  for (unsigned i = 0; i < 2 * ShadowCandidates::doublings_max; ++i) {
    EXPECT_EQ(candidates.next_at(now), now + wait) << i;
    EXPECT_EQ(candidates.choose(0, now + wait - Duration(1)), std::nullopt);
    now += wait;
    EXPECT_EQ(candidates.choose(0, now), (RailPair{1, 1}));
    EXPECT_FALSE(candidates.reject(End::remote, 1, now)) << "told once";
    wait = std::min(2 * wait, first_wait * (1 << ShadowCandidates::doublings_max));
  }
}

TEST(ShadowCandidates, TwoShadowsShareNoEnd) {
  ShadowCandidates candidates = four();
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  EXPECT_EQ(candidates.choose(1, candidates_start), (RailPair{2, 2}));
  candidates.pass_over(1);
  EXPECT_EQ(candidates.choose(1, candidates_start), (RailPair{2, 2})) << "the others share an end";
  candidates.pass_over(0);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1})) << "the second one holds 2";
}

TEST(ShadowCandidates, AShadowForWhichNothingIsLeftLooksAgainLater) {
  ShadowCandidates candidates({{1, 1}, {1, 2}}, 2);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  EXPECT_EQ(candidates.choose(1, candidates_start), std::nullopt);
  EXPECT_EQ(candidates.next_at(candidates_start), candidates_start + first_wait);
}

TEST(ShadowCandidates, TheEndsOfBothHostsAreKeptApart) {
  ShadowCandidates candidates({{1, 2}, {2, 1}}, 1);
  candidates.reject(End::local, 1, candidates_start);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{2, 1}));
}

RailPair next(ShadowCandidates& candidates) {
  candidates.pass_over(0);
  return candidates.choose(0, candidates_start).value();
}

TEST(ShadowCandidates, APairThatHasWorkedIsTriedAgainBetweenAnyTwoOthers) {
  ShadowCandidates candidates = four();
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  ASSERT_EQ(next(candidates), (RailPair{2, 2}));
  candidates.worked(0);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{2, 2})) << "the same at first";
  for (int round = 0; round < 2; ++round) {
    for (const RailPair& other : {RailPair{1, 1}, RailPair{1, 2}, RailPair{2, 1}}) {
      EXPECT_EQ(next(candidates), other);
      EXPECT_EQ(next(candidates), (RailPair{2, 2}));
    }
  }
}

TEST(ShadowCandidates, WithoutAPathAllHaveTheirTurnInOrder) {
  ShadowCandidates candidates = four();
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  candidates.worked(0);
  for (const RailPair& pair : {RailPair{2, 2}, RailPair{1, 2}, RailPair{2, 1}, RailPair{1, 1}}) {
    candidates.pass_over(0, true);
    EXPECT_EQ(candidates.choose(0, candidates_start), pair);
  }
}

TEST(ShadowCandidates, TheLastOneThatHasWorkedIsTheOne) {
  ShadowCandidates candidates = four();
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  candidates.worked(0);
  ASSERT_EQ(next(candidates), (RailPair{2, 2}));
  candidates.worked(0);
  EXPECT_EQ(next(candidates), (RailPair{1, 1}));
  EXPECT_EQ(next(candidates), (RailPair{2, 2}));
  EXPECT_EQ(next(candidates), (RailPair{1, 2}));
}

TEST(ShadowCandidates, TheOnlyPairIsTriedAgain) {
  ShadowCandidates candidates({{1, 1}}, 1);
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  candidates.worked(0);
  EXPECT_EQ(next(candidates), (RailPair{1, 1}));
  EXPECT_EQ(next(candidates), (RailPair{1, 1}));
}

TEST(ShadowCandidates, BesideOneThatHasWorkedAndIsRejectedAllOthersHaveTheirTurn) {
  ShadowCandidates candidates({{1, 1}, {2, 2}, {3, 3}}, 1);
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  candidates.worked(0);
  candidates.reject(End::local, 1, candidates_start);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(next(candidates), (RailPair{2, 2}));
    EXPECT_EQ(next(candidates), (RailPair{3, 3}));
  }
}

using Turn = ShadowCandidates::Turn;

/// The link of one end is back.
Turn turn_to(ShadowCandidates& candidates, End end, size_t rail, Instant now = candidates_start,
             bool under_way = true, bool promising = false) {
  return candidates.turn_to(
      0, end, [&](size_t one) { return one == rail; }, now, under_way, promising);
}

TEST(ShadowCandidates, AnEndWhoseLinkIsBackGivesItsBestPairTheNextTurn) {
  ShadowCandidates candidates = four();
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  ASSERT_EQ(next(candidates), (RailPair{2, 2}));
  EXPECT_EQ(turn_to(candidates, End::local, 2), Turn::at_once) << "it is being tried";
  EXPECT_EQ(turn_to(candidates, End::local, 7), Turn::none);
  EXPECT_EQ(turn_to(candidates, End::remote, 1), Turn::instead);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  EXPECT_EQ(next(candidates), (RailPair{2, 2})) << "goes on there";
}

TEST(ShadowCandidates, WhatWaitsTriesThePairWhoseLinkIsBack) {
  ShadowCandidates candidates = four();
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  candidates.pass_over(0);
  EXPECT_EQ(turn_to(candidates, End::remote, 1, candidates_start, false), Turn::at_once);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
}

TEST(ShadowCandidates, AnEndWhoseLinkIsBackGivesThePairThatHasWorkedTheNextTurn) {
  ShadowCandidates candidates = four();
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  ASSERT_EQ(next(candidates), (RailPair{2, 2}));
  candidates.worked(0);
  ASSERT_EQ(next(candidates), (RailPair{1, 1}));
  EXPECT_EQ(turn_to(candidates, End::remote, 2, candidates_start, true, true), Turn::instead);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{2, 2}));
}

TEST(ShadowCandidates, AWorsePairHasItsTurnUnlessTheOneBeingTriedIsPromising) {
  for (const bool promising : {true, false}) {
    ShadowCandidates candidates = four();
    ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
    EXPECT_EQ(turn_to(candidates, End::local, 2, candidates_start, true, promising),
              promising ? Turn::none : Turn::instead);
    EXPECT_EQ(promising ? next(candidates) : candidates.choose(0, candidates_start).value(),
              (RailPair{2, 2}))
        << "else it comes next";
  }
}

TEST(ShadowCandidates, ThePairThatHasWorkedAndIsPromisingIsNotGivenUp) {
  ShadowCandidates candidates = four();
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  ASSERT_EQ(next(candidates), (RailPair{2, 2}));
  candidates.worked(0);
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{2, 2}));
  EXPECT_EQ(turn_to(candidates, End::local, 1, candidates_start, true, true), Turn::none);
}

/// Each attempt lasts three seconds; news of the first end's link comes all the time.
TEST(ShadowCandidates, AnEndThatComesAndGoesLeavesTheOthersTheirTurns) {
  for (const bool urgent : {true, false}) {
    for (const bool proven : {true, false}) {
      for (int every_ms = 100; every_ms < 4000; every_ms += 100) {
        ShadowCandidates candidates({{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}}, 1);
        std::vector<int> tries(6);
        Instant begun = candidates_start;
        RailPair tried = candidates.choose(0, begun).value();
        if (proven) {
          candidates.worked(0);
          tried = next(candidates);
        }
        for (Instant now = begun; now < candidates_start + seconds(120);
             now += std::chrono::milliseconds(100)) {
          if ((now - candidates_start) % std::chrono::milliseconds(every_ms) == Duration(0) &&
              turn_to(candidates, End::local, 1, now) == Turn::instead) {
            tries[tried.local] += now - begun >= seconds(1) ? 1 : 0;
            begun = now;
            tried = candidates.choose(0, now).value();
          }
          if (now - begun >= seconds(3)) {
            ++tries[tried.local];
            candidates.pass_over(0, urgent);
            begun = now;
            tried = candidates.choose(0, now).value();
          }
        }
        EXPECT_GE(*std::min_element(tries.begin() + 1, tries.end()), 2)
            << urgent << proven << " every " << every_ms;
      }
    }
  }
}

TEST(ShadowCandidates, LinksThatComeBackOneAfterTheOtherLeaveTheBetterPairItsTurn) {
  for (const bool better_first : {true, false}) {
    ShadowCandidates candidates({{1, 1}, {2, 2}, {3, 3}}, 1);
    ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
    candidates.pass_over(0);
    EXPECT_EQ(turn_to(candidates, End::local, better_first ? 2 : 3, candidates_start, false),
              Turn::at_once);
    EXPECT_EQ(turn_to(candidates, End::local, better_first ? 3 : 2, candidates_start, false),
              Turn::at_once);
    EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{2, 2}));
    EXPECT_EQ(next(candidates), (RailPair{3, 3}));
  }
}

TEST(ShadowCandidates, OneMoreAttemptIsOverTheSamePair) {
  ShadowCandidates candidates = four();
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  ASSERT_EQ(turn_to(candidates, End::local, 2), Turn::instead);
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{2, 2}));
  candidates.repeat(0);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{2, 2}));
  EXPECT_EQ(next(candidates), (RailPair{1, 1})) << "its turn was interrupted";
}

TEST(ShadowCandidates, ALinkChangesNothingOfWhatIsRejectedOrTaken) {
  for (const bool own : {true, false}) {
    ShadowCandidates candidates = four();
    ASSERT_EQ(candidates.choose(1, candidates_start), (RailPair{1, 1}));
    ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{2, 2}));
    candidates.worked(1, own);
    EXPECT_EQ(turn_to(candidates, End::local, 1), Turn::none) << "the other shadow's";
    EXPECT_FALSE(candidates.lost(1));
  }
  ShadowCandidates rejected = four();
  ASSERT_EQ(rejected.choose(0, candidates_start), (RailPair{1, 1}));
  rejected.reject(End::remote, 1, candidates_start);
  ASSERT_EQ(rejected.choose(0, candidates_start), (RailPair{2, 2}));
  EXPECT_EQ(turn_to(rejected, End::remote, 1), Turn::none);
  EXPECT_EQ(turn_to(rejected, End::remote, 1, candidates_start + first_wait), Turn::instead);
}

TEST(ShadowCandidates, OnlyOneShadowTurnsToAPair) {
  ShadowCandidates candidates({{1, 1}, {2, 2}, {3, 3}}, 2);
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  ASSERT_EQ(candidates.choose(1, candidates_start), (RailPair{2, 2}));
  const auto third = [](size_t rail) { return rail == 3; };
  EXPECT_EQ(candidates.turn_to(0, End::local, third, candidates_start, true), Turn::instead);
  EXPECT_EQ(candidates.turn_to(1, End::local, third, candidates_start, true), Turn::none);
  EXPECT_FALSE(candidates.lost(1));
}

TEST(ShadowCandidates, AShadowThatOnlyTriesAnEndLosesItToOneThatTurnsThere) {
  for (const bool works : {false, true}) {
    ShadowCandidates candidates({{1, 1}, {2, 2}, {1, 2}, {2, 1}}, 2);
    ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
    ASSERT_EQ(candidates.choose(1, candidates_start), (RailPair{2, 2}));
    if (works) {
      candidates.worked(1);
    }
    EXPECT_EQ(turn_to(candidates, End::remote, 2), works ? Turn::none : Turn::instead);
    EXPECT_EQ(candidates.lost(1), !works);
    EXPECT_FALSE(candidates.lost(1)) << "once";
    EXPECT_EQ(candidates.choose(0, candidates_start), works ? (RailPair{1, 1}) : (RailPair{2, 2}));
    EXPECT_EQ(candidates.choose(1, candidates_start), works ? (RailPair{2, 2}) : (RailPair{1, 1}));
  }
}

/// Attempts over pairs that lead nowhere until a sweep has ended: how long each may take.
std::vector<Duration> limits_of_sweep(ShadowCandidates& candidates, bool urgent = false) {
  std::vector<Duration> limits;
  do {
    static_cast<void>(candidates.choose(0, candidates_start));
    limits.push_back(candidates.limit(0));
    candidates.pass_over(0, urgent);
  } while (candidates.sweeps_on(0, candidates_start, urgent) && limits.size() < 10000);
  return limits;
}

std::vector<RailPair> pairs_of(size_t count) {
  std::vector<RailPair> pairs;
  for (size_t i = 0; i < count; ++i) {
    pairs.push_back({i, i});
  }
  return pairs;
}

Duration sum(const std::vector<Duration>& limits) {
  Duration all{};
  for (const Duration one : limits) {
    all += one;
  }
  return all;
}

TEST(ShadowSweeps, TheFirstOneIsOverBeforeASecondIs) {
  for (size_t count = 1; count <= 24; ++count) {
    ShadowCandidates candidates(pairs_of(count), 1);
    const auto limits = limits_of_sweep(candidates);
    EXPECT_EQ(limits.size(), count);
    EXPECT_LE(sum(limits), Sweep::first) << count;
    EXPECT_GE(*std::min_element(limits.begin(), limits.end()), Sweep::attempt_min);
  }
}

TEST(ShadowSweeps, EachOneGivesAllPairsMoreTimeUpToTheLongest) {
  for (const size_t count : {1U, 4U, 20U, 576U}) {
    ShadowCandidates candidates(pairs_of(count), 1);
    Duration before{};
    for (int sweep = 0; sweep < 10; ++sweep) {
      const auto limits = limits_of_sweep(candidates);
      ASSERT_EQ(limits.size(), count) << "each has one turn";
      EXPECT_EQ(std::count(limits.begin(), limits.end(), limits.front()),
                static_cast<ptrdiff_t>(count));
      EXPECT_TRUE(limits.front() > before || before == ShadowCandidates::longest_attempt);
      before = limits.front();
    }
    EXPECT_EQ(before, ShadowCandidates::longest_attempt);
  }
}

TEST(ShadowSweeps, APairThatWorksBeginsThemAnew) {
  ShadowCandidates candidates(pairs_of(4), 1);
  const Duration first = limits_of_sweep(candidates).front();
  EXPECT_GT(limits_of_sweep(candidates).front(), first);
  ASSERT_TRUE(candidates.choose(0, candidates_start));
  candidates.worked(0);
  EXPECT_EQ(limits_of_sweep(candidates).front(), first);
}

/// Between the others it has what they have, so that it holds none of them up.
TEST(ShadowSweeps, APairThatHasWorkedHasOneFullAttemptAtTheEndOfEach) {
  for (const size_t count : {1U, 2U, 4U, 20U}) {
    for (const size_t proven : {size_t{0}, count / 2, count - 1}) {
      ShadowCandidates candidates(pairs_of(count), 1);
      for (size_t i = 0; i < proven; ++i) {
        ASSERT_TRUE(candidates.choose(0, candidates_start));
        candidates.pass_over(0);
      }
      ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{proven, proven}));
      candidates.worked(0);
      for (int sweep = 0; sweep < 2; ++sweep) {
        const auto limits = limits_of_sweep(candidates);
        EXPECT_EQ(limits.back(), ShadowCandidates::longest_attempt);
        EXPECT_EQ(std::count(limits.begin(), limits.end(), limits.back()), 1);
        EXPECT_LE(limits.size(), 2 * count + 1);
      }
    }
  }
}

TEST(ShadowSweeps, WhereNoPathIsLeftNoneIsHeldUpByAFullAttempt) {
  ShadowCandidates candidates(pairs_of(20), 1);
  ASSERT_TRUE(candidates.choose(0, candidates_start));
  candidates.worked(0);
  const auto limits = limits_of_sweep(candidates, true);
  EXPECT_LE(sum(limits), Sweep::first + Sweep::attempt_min * 2);
}

TEST(ShadowSweeps, WhatOthersHoldAtTheEndOfOneIsNotWaitedForWithoutAPause) {
  ShadowCandidates candidates({{1, 1}, {2, 2}, {2, 3}, {3, 2}}, 2);
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  ASSERT_EQ(candidates.choose(1, candidates_start), (RailPair{2, 2}));
  candidates.worked(1);
  EXPECT_EQ(limits_of_sweep(candidates).size(), 1U);
  EXPECT_EQ(limits_of_sweep(candidates).size(), 1U);
}

/// Places 1 and 2 of either host are addresses of one NIC, as are 3 and 4.
ShadowCandidates two_addresses_each() {
  return ShadowCandidates({{1, 1, 1, 1}, {2, 2, 1, 1}, {3, 3, 3, 3}, {4, 4, 3, 3}, {1, 3, 1, 3}},
                          2);
}

TEST(ShadowCandidates, TwoShadowsShareNoNicOverTwoOfItsAddresses) {
  ShadowCandidates candidates = two_addresses_each();
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  EXPECT_EQ(candidates.choose(1, candidates_start), (RailPair{3, 3}));
  candidates.pass_over(1);
  EXPECT_EQ(candidates.choose(1, candidates_start), (RailPair{4, 4}));
  candidates.pass_over(1);
  EXPECT_EQ(candidates.choose(1, candidates_start), (RailPair{3, 3}));
}

TEST(ShadowCandidates, ARejectedNicTakesAllItsAddressesWithIt) {
  ShadowCandidates candidates = two_addresses_each();
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  EXPECT_TRUE(candidates.reject(End::local, 1, candidates_start));
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{3, 3}));
}

TEST(ShadowCandidates, ANicWhoseLinkIsBackGivesTheAddressThatHasWorkedTheNextTurn) {
  ShadowCandidates candidates = two_addresses_each();
  ASSERT_EQ(candidates.choose(0, candidates_start), (RailPair{1, 1}));
  ASSERT_EQ(next(candidates), (RailPair{2, 2}));
  candidates.worked(0);
  ASSERT_EQ(next(candidates), (RailPair{1, 1}));
  ASSERT_EQ(next(candidates), (RailPair{2, 2}));
  ASSERT_EQ(next(candidates), (RailPair{3, 3}));
  EXPECT_EQ(turn_to(candidates, End::remote, 1), Turn::instead);
  EXPECT_EQ(candidates.choose(0, candidates_start), (RailPair{2, 2}));
}

}  // namespace
}  // namespace nccl_ha::ha
