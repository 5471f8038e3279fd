#include "ha/path_health.h"

namespace nccl_ha::ha {
namespace {

/// Signs of life that may stay unanswered, seeds/004, 4.
constexpr int64_t pulses_missed_max = 3;

/// What is allowed for data while nobody has seen how fast a path is: 5 MB/s.
constexpr int64_t unproven_ns_per_byte = 200;

/// Work may take this many times as long as it lately did.
constexpr int64_t usual_times = 4;

/// A path that was given up may be silent this many times as long before it is again.
constexpr int64_t patience_times = 2;

/// What is usual is forgotten by this share with each look, patience with each that finds work
/// answered.
constexpr int64_t forgotten_share = 32;

/// Patience is forgotten by this share of the time in which no work is answered: paths that take
/// turns keep it, one that stands by has forgotten it after half a minute at most (3 s of it).
constexpr int64_t forgotten_idle_share = 8;

/// The peer is asked when this share of the limit has passed; that leaves as much time for its
/// answer.
constexpr int64_t asked_share = 2;

/// A peer that did not run for a while answers all ways when it runs again, one after the other:
/// after each answer of another way the path has this share of the limit.
constexpr int64_t witness_share = 12;

}  // namespace

PathHealth::Finding PathHealth::look(const Moment& now, const Open& open, const Limits& limits,
                                     const Elsewhere& elsewhere) {
  invariants_.hold(open.writes >= open.pulses, "a heartbeat is a write");
  invariants_.hold(now.now >= alive_at_.now, "time does not go back");
  if (life_ != life_seen_ || open.writes == 0 || !waited_) {
    on_answer(now, open, limits);
    return Finding::fine;
  }
  const Duration silent = silent_for(now);
  allowed_ = limit(open, limits, elsewhere.usable);
  if (silent < allowed_ / asked_share) {
    return Finding::fine;
  }
  const bool judged = judge(silent, elsewhere);
  const Duration unwitnessed = limits.unwitnessed + for_bytes(open);
  if (judged || silent >= unwitnessed) {
    allowed_ = judged ? allowed_ : unwitnessed;
    invariants_.hold(silent >= allowed_ || silent >= limits.unwitnessed,
                     "a path is silent for longer than it may be");
    invariants_.hold(witnessed() || silent >= limits.unwitnessed,
                     "silence without a witness has its own limit");
    patience_ =
        std::max(patience_, std::min<Duration>(patience_times * silent, limits.unwitnessed));
    return Finding::silent;
  }
  return asks(silent, elsewhere) ? Finding::ask : Finding::fine;
}

/// The peer is to be asked: for the first time, once more, or again as what was asked may have got
/// lost with the way that it took.
bool PathHealth::asks(Duration silent, const Elsewhere& elsewhere) {
  if (!asked_) {
    asked_ = Asked{.after = silent, .evidence = elsewhere.evidence};
    return true;
  }
  if (asked_->open) {
    const bool lost = silent - asked_->after >= allowed_ / asked_share;
    asked_->after = lost ? silent : asked_->after;
    return lost;
  }
  if (witnessed() || silent - asked_->answered_after < allowed_ / witness_share) {
    return false;
  }
  asked_->after = silent;
  asked_->evidence = elsewhere.evidence;
  asked_->open = true;
  return true;
}

/// The peer has run, and would have answered this path too.
bool PathHealth::judge(Duration silent, const Elsewhere& elsewhere) {
  if (asked_ && asked_->open && elsewhere.evidence != asked_->evidence) {
    asked_->open = false;
    asked_->answered_after = silent;
    ++asked_->answers;
  }
  return witnessed() && silent >= allowed_ &&
         silent - asked_->answered_after >= allowed_ / witness_share;
}

std::optional<Instant> PathHealth::next_look(const Open& open, const Limits& limits,
                                             bool other_usable) const {
  if (!waited_) {
    return std::nullopt;
  }
  return alive_at_.now + limit(open, limits, other_usable) / asked_share;
}

/// Something came, or nothing was waited for.
void PathHealth::on_answer(const Moment& now, const Open& open, const Limits& limits) {
  const Duration silent = silent_for(now);
  const bool answered = waited_ && life_ != life_seen_;
  silence_ =
      std::max(answered && worked_ ? silent : Duration(0), silence_ - silence_ / forgotten_share);
  if (answered && silent < limits.soft_timeout / 2) {
    bytes_proven_ = std::max(bytes_proven_, bytes_seen_);
  }
  // What stands by does not show how long work takes.
  patience_ -= answered && worked_ ? patience_ / forgotten_share
                                   : std::min(patience_, silent / forgotten_idle_share);
  suspect_ = suspect_ && !answered;
  // Its own heartbeats are no traffic: there is at most one of them between two looks.
  moved_ = life_ - life_seen_ > 1;
  life_seen_ = life_;
  alive_at_ = now;
  waited_ = open.writes != 0;
  worked_ = open.writes > open.pulses;
  bytes_seen_ = open.bytes;
  asked_.reset();
  invariants_.hold(!asked_, "a path that answered is not judged by an older question");
}

Duration PathHealth::limit(const Open& open, const Limits& limits, bool other_usable) const {
  const Duration alone = limits.alone + for_bytes(open);
  return std::max(patience_, other_usable ? usual_limit(open, limits, alone) : alone);
}

Duration PathHealth::usual_limit(const Open& open, const Limits& limits, Duration alone) const {
  // Looked at with the third one after it, whichever of the two comes a moment early.
  const Duration missed = limits.heartbeat == Duration(0)
                              ? limits.alone
                              : pulses_missed_max * limits.heartbeat - limits.heartbeat / 8;
  if (open.writes <= open.pulses && !suspect_) {
    return std::min(missed, alone);
  }
  return std::min(alone,
                  std::min(missed, std::clamp(usual_times * silence_, limits.soft_timeout / 2,
                                              limits.soft_timeout)) +
                      for_bytes(open));
}

Duration PathHealth::for_bytes(const Open& open) const {
  return Duration(
      open.bytes > bytes_proven_ ? static_cast<int64_t>(open.bytes) * unproven_ns_per_byte : 0);
}

}  // namespace nccl_ha::ha
