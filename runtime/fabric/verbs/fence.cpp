#include "runtime/fabric/verbs/fence.h"

#include <cerrno>
#include <utility>

#include "runtime/base/check.h"

namespace nccl_ha::fabric::verbs {
namespace {

/// Between looks at whether a queue pair is gone.
constexpr Duration destruction_interval = std::chrono::microseconds(500);

/// Where this process does not get to run, what a device does in software does not either: it has
/// so many times as long, which is less than a destruction under such load takes.
constexpr int patience_when_starved = 20;

}  // namespace

Fence::~Fence() { services_.timers->cancel(timer_); }

void Fence::begin(uint32_t returned) {
  NHA_ASSERT(state_ == State::none, "a queue pair breaks once");
  begun_ = services_.moment();
  seen_returned_ = returned;
  seen_lost_ = begun_.lost;
  if (options_.flush_wait == Duration(0)) {
    state_ = State::overdue;
  } else {
    state_ = State::flushing;
    services_.timers->arm(timer_, begun_.now + options_.flush_wait);
  }
}

void Fence::stop_waiting() {
  NHA_ASSERT(state_ == State::flushing || state_ == State::overdue, "nothing is waited for");
  services_.timers->cancel(timer_);
  state_ = State::overdue;
  in_error_ = false;
}

bool Fence::moves(bool all_returned) const {
  switch (state_) {
    case State::flushing:
      return all_returned;
    case State::overdue:
      return true;
    case State::destroying:
      return proven(all_returned) || result() != Destruction::open;
    case State::none:
    case State::closed:
    case State::failed:
      return false;
  }
  return false;
}

Fence::Outcome Fence::move(bool all_returned) {
  switch (state_) {
    case State::flushing:
      NHA_DASSERT(all_returned, "the device still has work");
      return end(State::closed, Outcome::returned);
    case State::overdue:
      if (proven(all_returned)) {  // while nobody looked
        return end(State::closed, Outcome::returned);
      }
      return Outcome::must_destroy;
    case State::destroying:
      if (proven(all_returned)) {
        return end(State::closed, Outcome::returned);
      }
      error_ = result();
      NHA_DASSERT(error_ != Destruction::open, "the destruction is still under way");
      return error_ != 0 ? end(State::failed, Outcome::failed)
                         : end(State::closed, Outcome::destroyed);
    case State::none:
    case State::closed:
    case State::failed:
      break;
  }
  return Outcome::open;
}

Fence::Outcome Fence::await(std::shared_ptr<const Destruction> destruction) {
  NHA_ASSERT(state_ == State::overdue, "nothing is to be destroyed");
  destruction_ = std::move(destruction);
  state_ = State::destroying;
  destruction_deadline_ = services_.clock->now() + options_.destroy_limit;
  return check_destruction();
}

Fence::Outcome Fence::check(uint32_t returned) {
  switch (state_) {
    case State::flushing:
      return check_flush(returned);
    case State::destroying:
      return check_destruction();
    case State::none:
    case State::overdue:
    case State::closed:
    case State::failed:
      break;
  }
  return Outcome::open;
}

/// A slow device, or a starved host, takes its time with a long queue.
Fence::Outcome Fence::check_flush(uint32_t returned) {
  const Duration lost = services_.lost_time();
  const bool moved = std::exchange(seen_returned_, returned) != returned;
  const bool starved = std::exchange(seen_lost_, lost) != lost &&
                       took() < patience_when_starved * options_.flush_wait;
  if (moved || starved) {
    services_.timers->arm(timer_, services_.clock->now() + options_.flush_wait);
  } else {
    state_ = State::overdue;
  }
  return Outcome::open;
}

Fence::Outcome Fence::check_destruction() {
  if (result() != Destruction::open) {
    return Outcome::open;  // it moves
  }
  const Instant now = services_.clock->now();
  if (now >= destruction_deadline_) {
    error_ = ETIMEDOUT;
    return end(State::failed, Outcome::failed);
  }
  services_.timers->arm(timer_, now + destruction_interval);
  return Outcome::open;
}

int Fence::result() const { return destruction_->result.load(std::memory_order_acquire); }

Fence::Outcome Fence::end(State state, Outcome outcome) {
  state_ = state;
  services_.timers->cancel(timer_);
  return outcome;
}

}  // namespace nccl_ha::fabric::verbs
