#include <gtest/gtest.h>

#include "ha/peer_verdict.h"

namespace nccl_ha::ha::test {
namespace {

using Answer = PeerVerdict::Answer;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Instant start{seconds(100)};

TEST(PeerVerdict, WhoDoesNotKnowTheConnectionSettlesIt) {
  PeerVerdict verdict;
  EXPECT_TRUE(verdict.on_answer(Answer::absent, true, 7, start));
}

TEST(PeerVerdict, SilenceProvesNothingForHowLongItMayLast) {
  PeerVerdict verdict;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(verdict.on_answer(Answer::silence, true, 7, start + i * seconds(1)));
  }
}

TEST(PeerVerdict, TwoRefusalsApartAreDeath) {
  PeerVerdict verdict;
  EXPECT_FALSE(verdict.on_answer(Answer::refused, true, 7, start));
  EXPECT_FALSE(verdict.on_answer(Answer::refused, true, 7, start + milliseconds(199)));
  EXPECT_TRUE(verdict.on_answer(Answer::refused, true, 7, start + milliseconds(200)));
}

TEST(PeerVerdict, SilenceBetweenTwoRefusalsDoesNotTakeTheFirstBack) {
  PeerVerdict verdict;
  EXPECT_FALSE(verdict.on_answer(Answer::refused, true, 7, start));
  EXPECT_FALSE(verdict.on_answer(Answer::silence, true, 7, start + milliseconds(100)));
  EXPECT_TRUE(verdict.on_answer(Answer::refused, true, 7, start + milliseconds(200)));
}

TEST(PeerVerdict, LifeOnAPathTakesARefusalBack) {
  PeerVerdict verdict;
  uint64_t life = 7;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(verdict.on_answer(Answer::refused, true, life++, start + i * milliseconds(200)));
  }
  // The last one counts from when it was seen.
  EXPECT_FALSE(verdict.on_answer(Answer::refused, true, life, start + seconds(300)));
  EXPECT_TRUE(verdict.on_answer(Answer::refused, true, life, start + seconds(301)));
}

TEST(PeerVerdict, AnAnswerOfThePeerTakesARefusalBack) {
  PeerVerdict verdict;
  EXPECT_FALSE(verdict.on_answer(Answer::refused, true, 7, start));
  EXPECT_FALSE(verdict.on_answer(Answer::present, true, 7, start + milliseconds(100)));
  EXPECT_FALSE(verdict.on_answer(Answer::refused, true, 7, start + milliseconds(300)));
}

TEST(PeerVerdict, NobodySpeaksForThePeerOnAWayThatMayLeadElsewhere) {
  // The peer has a container bridge with the same address as this host's.
  PeerVerdict verdict;
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(verdict.on_answer(Answer::refused, false, 7, start + i * seconds(1)));
    EXPECT_FALSE(verdict.on_answer(Answer::absent, false, 7, start + i * seconds(1)));
  }
  EXPECT_FALSE(verdict.on_answer(Answer::refused, true, 7, start + seconds(11)));
}

TEST(PeerVerdict, AHintIsFollowedSoonButNotForEver) {
  for (const Answer hint : {Answer::refused, Answer::broken}) {
    PeerVerdict verdict;
    EXPECT_EQ(verdict.pause(), PeerVerdict::usual_pause);
    uint64_t life = 0;
    for (uint32_t i = 0; i < PeerVerdict::hints_followed; ++i) {
      EXPECT_FALSE(verdict.on_answer(hint, true, life++, start + i * seconds(1)));
      EXPECT_EQ(verdict.pause(), PeerVerdict::refusals_apart);
      EXPECT_TRUE(verdict.stays(hint, true));
      EXPECT_FALSE(verdict.stays(hint, false));
      EXPECT_FALSE(verdict.stays(Answer::silence, true));
    }
    EXPECT_FALSE(verdict.on_answer(hint, true, life++, start + seconds(20)));
    EXPECT_EQ(verdict.pause(), PeerVerdict::usual_pause);
    EXPECT_FALSE(verdict.stays(hint, true));
  }
}

TEST(PeerVerdict, AStreamThatBreaksIsNoRefusal) {
  PeerVerdict verdict;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(verdict.on_answer(Answer::broken, true, 7, start + i * seconds(1)));
  }
}

}  // namespace
}  // namespace nccl_ha::ha::test
