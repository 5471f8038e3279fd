#include "runtime/fabric/verbs/fence.h"

#include <cerrno>
#include <utility>

#include "runtime/base/check.h"

namespace nccl_ha::fabric::verbs {
namespace {

/// Between looks at whether a queue pair is gone.
constexpr Duration waiting_interval = std::chrono::microseconds(500);
constexpr Duration stuck_interval = std::chrono::milliseconds(20);
/// Between two questions while the host or the device is short of something.
constexpr Duration shortage_interval = std::chrono::milliseconds(20);
/// Between two words that a fence is late.
constexpr Duration late_interval = std::chrono::milliseconds(100);

/// Where this process does not get to run, what a device does in software does not either: it has
/// so many times as long, which is less than a destruction under such load takes.
constexpr int patience_when_starved = 20;

}  // namespace

Fence::~Fence() { services_.timers->cancel(timer_); }

void Fence::begin(uint32_t returned, std::shared_ptr<const Answer> stop) {
  NHA_ASSERT(state_ == State::none, "a queue pair breaks once");
  begun_ = services_.moment();
  seen_returned_ = last_returned_ = returned;
  seen_lost_ = begun_.lost;
  stop_ = std::move(stop);
  if (options_.flush_wait == Duration(0) || !stop_) {
    state_ = State::overdue;
  } else {
    state_ = State::flushing;
    services_.timers->arm(timer_, begun_.now + options_.flush_wait);
  }
}

void Fence::begin_unused() {
  NHA_ASSERT(state_ == State::none, "a queue pair breaks once");
  begun_ = services_.moment();
  given_ = false;
  state_ = State::overdue;
}

bool Fence::in_vain() const {
  return destruction_ == nullptr &&
         (state_ == State::overdue || cannot_stop() || (question_ && question_->over()));
}

bool Fence::moves(bool all_returned) const {
  switch (state_) {
    case State::flushing:
    case State::overdue:
    case State::waiting:
      return may_ask(all_returned) || proven(all_returned) != FenceProof::none || in_vain();
    case State::none:
    case State::closed:
      return false;
  }
  return false;
}

Fence::Outcome Fence::move(bool all_returned) {
  if (state_ == State::none || state_ == State::closed) {
    return Outcome::open;
  }
  proof_ = proven(all_returned);
  if (proof_ != FenceProof::none) {
    state_ = State::closed;
    services_.timers->cancel(timer_);
    return Outcome::closed;
  }
  if (may_ask(all_returned)) {
    return Outcome::must_ask;
  }
  return in_vain() ? Outcome::must_destroy : Outcome::open;
}

void Fence::confirm(std::shared_ptr<const Answer> question) {
  NHA_ASSERT(!question_, "the firmware is asked once");
  question_ = std::move(question);
  begin_silence();
  wait();
}

void Fence::await(std::shared_ptr<const Answer> destruction) {
  NHA_ASSERT(!destruction_, "a queue pair is destroyed once");
  destruction_ = std::move(destruction);
  begin_silence();
  wait();
}

void Fence::wait() {
  state_ = State::waiting;
  ask_again_ = services_.clock->now() + shortage_interval;
  if (deadline_ == Instant{}) {
    // One that did not even go to ERR has had its time.
    const bool silent = stop_ && !stop_->over();
    deadline_ = (silent ? begun_.now : services_.clock->now()) + options_.stuck_after;
  }
  services_.timers->arm(timer_, services_.clock->now() + waiting_interval);
}

FenceProof Fence::proven(bool all_returned) const {
  FenceEvidence known;
  known.given = given_;
  known.stopped = stopped();
  known.all_returned = all_returned && !abandoned_;
  known.return_confirmed = question_ != nullptr && question_->confirmed();
  known.destruction_confirmed = destruction_ != nullptr && destruction_->confirmed();
  known.silent = silent();
  known.device = device_.level();
  return proof_of(known);
}

void Fence::on_peer_stopped() {
  if (state_ != State::none && state_ != State::closed && !silent_since_) {
    silent_since_ = services_.moment();
  }
}

/// What is asked now has its time, too.
void Fence::begin_silence() {
  if (silent_since_) {
    silent_since_ = services_.moment();
  }
}

/// The firmware answers nothing of what it was asked.  One that answers may still lie, and what
/// waits behind a command that takes long was not asked yet.
bool Fence::silent() const {
  const auto& asked = destruction_ ? destruction_ : question_ ? question_ : stop_;
  if (!silent_since_ || options_.hung_after == Duration(0) || !asked || asked->over()) {
    return false;
  }
  if (conductor_ != nullptr && !conductor_->hangs(options_.hung_after)) {
    return false;
  }
  const Moment now = services_.moment();
  return now.now - silent_since_->now - (now.lost - silent_since_->lost) >= options_.hung_after;
}

void Fence::look_for_life(uint32_t returned) {
  if (std::exchange(last_returned_, returned) != returned) {
    begin_silence();
  }
}

Fence::Outcome Fence::check(uint32_t returned) {
  look_for_life(returned);
  Outcome outcome = Outcome::open;
  switch (state_) {
    case State::flushing:
      outcome = check_flush(returned);
      break;
    case State::waiting:
      outcome = check_waiting();
      break;
    case State::none:
    case State::overdue:
    case State::closed:
      return Outcome::open;
  }
  const Instant now = services_.clock->now();
  if (outcome == Outcome::open && !abandoned_ && took() - lost() >= options_.late_after &&
      now >= late_again_) {
    late_again_ = now + late_interval;
    return Outcome::late;
  }
  return outcome;
}

/// A slow device, or a starved host, takes its time with a long queue; and many queue pairs that
/// are to go to ERR do so one after the other.
Fence::Outcome Fence::check_flush(uint32_t returned) {
  const bool asked = !stop_->over() && took() < options_.stuck_after;
  const Duration lost = services_.lost_time();
  const bool moved = std::exchange(seen_returned_, returned) != returned;
  const bool starved = std::exchange(seen_lost_, lost) != lost &&
                       took() < patience_when_starved * options_.flush_wait;
  if (asked || moved || starved) {
    services_.timers->arm(timer_, services_.clock->now() + options_.flush_wait);
  } else {
    state_ = State::overdue;
  }
  return Outcome::open;
}

Fence::Outcome Fence::check_waiting() {
  const Instant now = services_.clock->now();
  const bool late = now >= deadline_;
  // One that is stuck takes as long as its device takes to be reset, or for good.
  services_.timers->arm(timer_, now + (late ? stuck_interval : waiting_interval));
  const auto asked = destruction_ ? destruction_ : question_;
  const bool refused = destruction_ && destruction_->over();
  if (refused && (late || (is_shortage(destruction_->error()) && now >= ask_again_))) {
    ask_anew();
  }
  if (!late) {
    return Outcome::open;
  }
  deadline_ = refused ? Instant{} : deadline_;
  if (std::exchange(told_, true)) {
    return Outcome::open;
  }
  error_ = !asked->over() ? ETIMEDOUT : asked->confirmed() ? EIO : asked->error();
  return Outcome::stuck;
}

void Fence::ask_anew() {
  destruction_.reset();
  state_ = State::overdue;
}

}  // namespace nccl_ha::fabric::verbs
