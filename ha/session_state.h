// What becomes of a stream that connections may share: whether one may join it, which number each
// has, and what the peer's number means.
//
// The side that dials gives the numbers, and uses none twice.  Pure; takes the time from its
// caller. One thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ha/invariant.h"
#include "runtime/base/instant.h"

namespace nccl_ha::ha {

class SessionState {
 public:
  /// Connections of one stream at a time.
  static constexpr size_t connections_max = 1024;
  /// How long others wait for the answer to the first connection.
  static constexpr Duration patience = std::chrono::milliseconds(200);
  /// For so long others join a stream that is being dialled.  A kernel repeats a dial that nothing
  /// answers less and less often, so that a new dial finds a network that is back sooner.
  static constexpr Duration dial_joined_for = std::chrono::milliseconds(250);
  /// No connection joins a stream that was unheard for longer,
  static constexpr Duration unheard_max = std::chrono::milliseconds(250);
  /// or over which nothing has come for longer: a middlebox may have forgotten it.
  static constexpr Duration quiet_max = std::chrono::seconds(2);

  enum class Phase : uint8_t {
    dialling,  ///< there is no stream yet
    asking,    ///< its first connection speaks, and the peer has not answered
    shared,    ///< others are set up inside it
    alone,     ///< the peer does not share it: it is the first connection's
    over,      ///< it has ended
  };
  /// The peer's first message on a stream that this side dialled.
  enum class Answer : uint8_t {
    shares,   ///< it may be shared
    absent,   ///< nothing there has heard of the first connection, which says nothing of others
    another,  ///< the peer speaks with the first connection only
  };
  /// What a number of the peer's stands for.
  enum class Meaning : uint8_t {
    known,  ///< a connection of this stream
    fresh,  ///< a new one: only the side that accepted the stream hears of those
    full,   ///< a new one, and there are too many
    gone,   ///< one that this side has ended, or that never said for whom it is
    wrong,  ///< none that a peer which keeps to the protocol would name
  };

  /// `asks`: others than the first one may join, if the peer agrees.
  static SessionState dialled(bool asks, Instant now) {
    return SessionState(Phase::dialling, asks, false, now);
  }
  /// The peer dialled, and asked.
  static SessionState accepted() { return SessionState(Phase::shared, true, true, {}); }

  Phase phase() const { return phase_; }
  bool asks() const { return asks_; }
  bool is_over() const { return phase_ == Phase::over; }
  bool is_shared() const { return phase_ == Phase::shared; }
  /// The peer is known to leave this stream to its first connection.
  bool is_refused() const { return phase_ == Phase::alone && asks_ && !absent_; }
  size_t connections() const { return connections_; }

  /// The stream is there.
  void on_open(Instant now) {
    if (invariants_.hold(phase_ == Phase::dialling, "a stream opens once")) {
      phase_ = asks_ ? Phase::asking : Phase::alone;
      since_ = now;
    }
  }
  void on_answer(Answer answer) {
    if (invariants_.hold(phase_ == Phase::asking, "a stream is answered once")) {
      phase_ = answer == Answer::shares ? Phase::shared : Phase::alone;
      absent_ = answer == Answer::absent;
    }
  }
  void end() { phase_ = Phase::over; }

  /// Until when others wait for the answer; nullopt: there is none to wait for.
  std::optional<Instant> answer_due() const {
    return phase_ == Phase::asking ? std::optional(since_ + patience) : std::nullopt;
  }
  /// May another connection of this side join?  For how long the stream was unheard, and nothing
  /// has come over it.
  bool may_join(Duration unheard, Duration quiet, Instant now) const {
    if (!asks_ || accepted_ || connections_ >= connections_max || next_ >= UINT32_MAX / 2) {
      return false;
    }
    switch (phase_) {
      case Phase::dialling:
        return now < since_ + dial_joined_for;
      case Phase::asking:
        return now < since_ + patience && unheard <= unheard_max;
      case Phase::shared:
        return unheard <= unheard_max && quiet <= quiet_max;
      case Phase::alone:
      case Phase::over:
        break;
    }
    return false;
  }
  /// Another connection of this side is in.  False: there are too many.
  [[nodiscard]] bool add() {
    const bool room = connections_ < connections_max;
    connections_ += room ? 1 : 0;
    return room;
  }
  /// For one of these, when it speaks: those that are in may stay silent for long.
  uint32_t take_number() { return next_++; }
  /// The peer speaks of that number.  `there`: a connection has it.  `introduces`: the message says
  /// for whom the connection is, as the first one of each does.  A fresh one is in from now on.
  Meaning judge(uint32_t number, bool there, bool introduces) {
    if (there) {
      return Meaning::known;
    }
    if (!accepted_) {
      return number < next_ ? Meaning::gone : Meaning::wrong;
    }
    if (!introduces) {
      return Meaning::gone;
    }
    return add() ? Meaning::fresh : Meaning::full;
  }
  void remove() {
    if (invariants_.hold(connections_ != 0, "no more connections leave than came")) {
      --connections_;
    }
  }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  SessionState(Phase phase, bool asks, bool accepted, Instant now)
      : phase_(phase), asks_(asks), accepted_(accepted), since_(now) {}

  Phase phase_;
  bool asks_;
  bool accepted_;
  Instant since_;  ///< it is dialled, then open
  bool absent_ = false;
  uint32_t next_ = 0;
  size_t connections_ = 0;
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
