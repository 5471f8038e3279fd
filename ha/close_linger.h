// How long a connection that is over goes on, so that its last words arrive.
#pragma once

#include <algorithm>
#include <chrono>

#include "ha/invariant.h"
#include "runtime/base/clock.h"

namespace nccl_ha::ha {

/// A side that closes or fails says so, and its paths and its stream carry that until the peer has
/// confirmed it.  The peer's side of it goes on until its confirmation has arrived.  Both end after
/// a while whatever comes.  Who closes in good order goes on for as long as its peer tries to reach
/// it, unless its process ends: the peer may be waiting for what it alone can say, that all has
/// arrived.  Takes the time from its caller.  One thread.
class CloseLinger {
 public:
  /// Several round trips and an attempt or two of a failover, and hardly noticed by a process that
  /// waits for its end.
  static constexpr Duration limit = std::chrono::milliseconds(500);
  /// Queue pairs and a place among a worker's actors are held meanwhile.
  static constexpr Duration longest = std::chrono::seconds(60);

  /// `wanted`: so long, if that is more than the limit.
  void begin(Instant now, Duration wanted = limit) {
    if (state_ == State::none) {
      state_ = State::under_way;
      hurried_ = now + limit;
      until_ = hurries_ ? hurried_ : now + std::clamp(wanted, limit, longest);
    }
  }
  /// The process, or this network in it, ends: nothing takes longer than the limit from now on.
  void hurry() {
    hurries_ = true;
    until_ = std::min(until_, hurried_);
  }
  void end() { state_ = State::over; }
  bool under_way() const { return state_ == State::under_way; }
  Instant until() const { return until_; }
  /// When to look again: at the limit the peer is looked for on all ways.
  Instant next_look(Instant now) const { return now < hurried_ ? hurried_ : until_; }

  /// The peer has said that it ends as well: it needs nothing more than to hear that this arrived,
  /// and may be gone before it says that it did.
  void on_last_words(Instant now) {
    peer_ends_ = true;
    hurries_ = true;
    until_ = std::min(until_, std::max(hurried_, now + limit));
  }
  bool peer_ends() const { return peer_ends_; }
  /// A confirmation that was sent after that has arrived at the peer's NIC.
  void on_answer_arrived() { answered_ = true; }
  /// The peer has closed the stream in good order: it heard everything, or is gone.
  void on_peer_left() { peer_left_ = true; }

  /// `confirmed`: the peer has confirmed everything.  `any_path`: a path may still carry something;
  /// without one the answer goes over the stream, which sends it by itself.
  bool is_over(bool confirmed, bool any_path, Instant now) const {
    const bool heard = confirmed || peer_ends_;
    const bool told = !peer_ends_ || answered_ || !any_path;
    const bool late = now >= until_;
    const bool over = (heard && told) || peer_left_ || late;
    return over ||
           !invariants_.hold(now < until_, "the end of a connection does not take for ever");
  }

  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  enum class State : uint8_t { none, under_way, over };
  State state_ = State::none;
  Instant until_{};
  Instant hurried_{};  ///< the same for who cannot stay
  bool hurries_ = false;
  bool peer_ends_ = false;
  bool answered_ = false;
  bool peer_left_ = false;
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
