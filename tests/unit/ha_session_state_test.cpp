#include <gtest/gtest.h>

#include "ha/session_state.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;
using SessionAnswer = SessionState::Answer;
using SessionMeaning = SessionState::Meaning;
using SessionPhase = SessionState::Phase;

constexpr Instant session_begin{std::chrono::seconds(1)};

SessionState dialled_session(bool asks = true) {
  return SessionState::dialled(asks, session_begin);
}

/// Dialled, and the first connection is in.
SessionState asking_session() {
  SessionState state = dialled_session();
  state.on_open(session_begin);
  EXPECT_TRUE(state.add());
  EXPECT_EQ(state.take_number(), 0U);
  return state;
}

SessionState shared_session() {
  SessionState state = asking_session();
  state.on_answer(SessionAnswer::shares);
  return state;
}

bool may_join_now(const SessionState& state, Duration unheard = {}, Duration quiet = {}) {
  return state.may_join(unheard, quiet, session_begin + milliseconds(1));
}

TEST(SessionState, OthersJoinWhileItIsDialledAndWhenThePeerShares) {
  EXPECT_TRUE(may_join_now(dialled_session()));
  EXPECT_TRUE(may_join_now(asking_session()));
  EXPECT_TRUE(may_join_now(shared_session()));
  EXPECT_EQ(shared_session().broken(), nullptr);
}

TEST(SessionState, NoneJoinsAStreamThatIsTheFirstConnections) {
  for (const SessionAnswer answer : {SessionAnswer::another, SessionAnswer::absent}) {
    SessionState state = asking_session();
    state.on_answer(answer);
    EXPECT_EQ(state.phase(), SessionPhase::alone);
    EXPECT_FALSE(may_join_now(state));
    EXPECT_EQ(state.is_refused(), answer == SessionAnswer::another);
  }
  SessionState own = dialled_session(false);
  EXPECT_FALSE(may_join_now(own));
  own.on_open(session_begin);
  EXPECT_EQ(own.phase(), SessionPhase::alone);
  EXPECT_FALSE(own.is_refused()) << "the peer was not asked";
}

/// A kernel repeats the same dial after seconds, and a new one finds what is back at once.
TEST(SessionState, ADialIsJoinedForAWhileOnly) {
  const SessionState state = dialled_session();
  const Instant end = session_begin + SessionState::dial_joined_for;
  EXPECT_TRUE(state.may_join(std::chrono::seconds(1), {}, end - Duration(1)));
  EXPECT_FALSE(state.may_join({}, {}, end));
}

TEST(SessionState, OthersWaitForTheAnswerForAWhile) {
  const SessionState state = asking_session();
  const Instant end = session_begin + SessionState::patience;
  EXPECT_EQ(state.answer_due(), end);
  EXPECT_TRUE(state.may_join({}, {}, end - Duration(1)));
  EXPECT_FALSE(state.may_join({}, {}, end));
  EXPECT_EQ(shared_session().answer_due(), std::nullopt);
  EXPECT_TRUE(shared_session().may_join({}, {}, session_begin + std::chrono::hours(1)));
}

TEST(SessionState, NoneJoinsAStreamThatThePeersHostDoesNotHear) {
  EXPECT_TRUE(may_join_now(shared_session(), SessionState::unheard_max));
  EXPECT_FALSE(may_join_now(shared_session(), SessionState::unheard_max + Duration(1)));
}

/// Nothing tells whether a middlebox still knows it.
TEST(SessionState, NoneJoinsAStreamOverWhichNothingHasComeForLong) {
  EXPECT_TRUE(may_join_now(shared_session(), {}, SessionState::quiet_max));
  EXPECT_FALSE(may_join_now(shared_session(), {}, SessionState::quiet_max + Duration(1)));
}

TEST(SessionState, NumbersCountUpAndNoneComesTwice) {
  SessionState state = shared_session();
  ASSERT_TRUE(state.add());
  EXPECT_EQ(state.take_number(), 1U);
  state.remove();
  ASSERT_TRUE(state.add());
  EXPECT_EQ(state.take_number(), 2U);
  EXPECT_EQ(state.connections(), 2U);
}

TEST(SessionState, HasOnlySoManyConnectionsAtATime) {
  SessionState state = shared_session();
  while (state.connections() < SessionState::connections_max) {
    ASSERT_TRUE(state.add());
  }
  EXPECT_FALSE(may_join_now(state));
  EXPECT_FALSE(state.add());
  state.remove();
  EXPECT_TRUE(may_join_now(state));
}

TEST(SessionState, AConnectionOfThePeersBeginsByTellingForWhomItIs) {
  SessionState state = SessionState::accepted();
  EXPECT_EQ(state.judge(0, false, true), SessionMeaning::fresh);
  EXPECT_EQ(state.judge(0, true, false), SessionMeaning::known);
  EXPECT_EQ(state.judge(5, false, true), SessionMeaning::fresh);
  EXPECT_EQ(state.judge(3, false, true), SessionMeaning::fresh) << "it was silent for longer";
  EXPECT_EQ(state.judge(4, false, false), SessionMeaning::gone);
  EXPECT_FALSE(may_join_now(state)) << "this side makes no connections in it";
}

TEST(SessionState, APeerBringsOnlySoManyConnections) {
  SessionState state = SessionState::accepted();
  uint32_t number = 0;
  for (; number < SessionState::connections_max; ++number) {
    ASSERT_EQ(state.judge(number, false, true), SessionMeaning::fresh);
  }
  EXPECT_EQ(state.judge(number, false, true), SessionMeaning::full);
  state.remove();
  EXPECT_EQ(state.judge(number, false, true), SessionMeaning::fresh);
}

TEST(SessionState, ThePeerThatWasDialledBringsNoConnections) {
  SessionState state = shared_session();
  EXPECT_EQ(state.judge(0, true, false), SessionMeaning::known);
  EXPECT_EQ(state.judge(0, false, true), SessionMeaning::gone);
  EXPECT_EQ(state.judge(1, false, true), SessionMeaning::wrong);
}

TEST(SessionState, WhatComesTwiceIsTold) {
  SessionState state = shared_session();
  state.on_answer(SessionAnswer::another);
  EXPECT_NE(state.broken(), nullptr);
  EXPECT_TRUE(state.is_shared());
  SessionState empty = dialled_session();
  empty.remove();
  EXPECT_NE(empty.broken(), nullptr);
}

}  // namespace
}  // namespace nccl_ha::ha
