#include "ha/lane.h"

#include <utility>

#include "ha/lane_coverage.h"

namespace nccl_ha::ha {

LaneCoverage& lane_coverage() {
  static LaneCoverage counts;
  return counts;
}

/// Holds after every event, whatever it was.
SenderSteps SenderLane::checked(const SenderSteps& steps) const {
  invariants_.hold(!steps.take_down || (state_ == State::fencing && !drained_),
                   "a sender's fence begins with work that has not come back");
  invariants_.hold(!steps.say_down || (state_ == State::fencing && drained_),
                   "a sender says that it is down when all its work has come back");
  invariants_.hold(!steps.apply_report || (state_ == State::down && drained_),
                   "a report is applied to a lane that is fenced");
  invariants_.hold(!steps.reopen || may_reopen(),
                   "a path is replaced when its device is through with it");
  invariants_.hold(!steps.connect || (state_ == State::opening && rebuilt_),
                   "a new path is connected to one that the peer has made");
  return steps;
}

SenderSteps SenderLane::on_ready() {
  saw(state_, SenderEvent::ready);
  if (state_ != State::opening) {
    return {};
  }
  state_ = State::usable;
  return checked({.use = true});
}

SenderSteps SenderLane::on_failed() {
  saw(state_, SenderEvent::failed);
  if (state_ == State::fencing || state_ == State::down) {
    return {};
  }
  state_ = State::fencing;
  drained_ = false;
  return checked({.take_down = true});
}

SenderSteps SenderLane::on_unproven() {
  saw(state_, SenderEvent::unproven);
  if (state_ != State::fencing || drained_) {
    return {};
  }
  proven_ = false;
  return {.abandon = true};
}

SenderSteps SenderLane::on_proven() {
  saw(state_, SenderEvent::proven);
  const bool waited = !std::exchange(proven_, true) && !moves_;
  return checked({.reopen = waited && state_ == State::down});
}

SenderSteps SenderLane::on_suspect(uint32_t epoch) {
  saw(state_, epoch == epoch_ ? SenderEvent::suspect : SenderEvent::old_suspect);
  if (epoch > epoch_) {
    return {.protocol_error = true};
  }
  return epoch == epoch_ ? on_failed() : SenderSteps{};  // an old one was dealt with
}

SenderSteps SenderLane::on_drained() {
  saw(state_, SenderEvent::drained);
  if (state_ != State::fencing || drained_) {
    return {};
  }
  drained_ = true;
  return checked({.say_down = true});
}

SenderSteps SenderLane::on_fenced(uint32_t epoch) {
  saw(state_, SenderEvent::fenced);
  if (state_ != State::fencing || epoch != epoch_ || !drained_) {
    return {.protocol_error = true};
  }
  state_ = State::down;
  return checked({.apply_report = true, .reopen = may_reopen()});
}

void SenderLane::reopened() {
  saw(state_, SenderEvent::reopened);
  invariants_.hold(state_ == State::down && may_reopen(),
                   "a path is made anew on a lane that is down");
  state_ = State::opening;
  ++epoch_;
  proven_ = true;
  rebuilt_ = false;
}

SenderSteps SenderLane::on_rebuilt(uint32_t epoch) {
  saw(state_, epoch == epoch_ ? SenderEvent::rebuilt : SenderEvent::old_rebuilt);
  if (epoch > epoch_ || (epoch == epoch_ && rebuilt_)) {
    return {.protocol_error = true};
  }
  if (epoch != epoch_) {
    return {};
  }
  rebuilt_ = true;
  // It may have failed here while the peer made its side.
  return checked({.connect = state_ == State::opening});
}

/// Holds after every event, whatever it was.
ReceiverSteps ReceiverLane::checked(const ReceiverSteps& steps) const {
  invariants_.hold(!steps.take_down || !drained_,
                   "a receiver's fence begins with receives that have not come back");
  invariants_.hold(!steps.report || (state_ == State::fenced && drained_),
                   "a receiver reports when all its receives have come back");
  invariants_.hold(!steps.open || state_ == State::opening,
                   "a receiver makes a new path on a lane that was fenced");
  return steps;
}

ReceiverSteps ReceiverLane::on_ready() {
  saw(state_, ReceiverEvent::ready);
  if (state_ != State::opening) {
    return {};
  }
  state_ = State::usable;
  return {.use = true};
}

ReceiverSteps ReceiverLane::on_failed() {
  saw(state_, ReceiverEvent::failed);
  if (state_ != State::opening && state_ != State::usable) {
    return {};
  }
  state_ = State::suspected;
  drained_ = false;
  return checked({.take_down = true, .say_suspect = true});
}

ReceiverSteps ReceiverLane::on_drained() {
  saw(state_, ReceiverEvent::drained);
  if (drained_ || state_ == State::opening || state_ == State::usable) {
    return {};
  }
  drained_ = true;
  if (state_ != State::fencing) {
    return {};
  }
  state_ = State::fenced;
  return checked({.report = true});
}

ReceiverSteps ReceiverLane::on_down(uint32_t epoch) {
  saw(state_, ReceiverEvent::down);
  if (epoch != epoch_ || state_ == State::fencing || state_ == State::fenced) {
    return {.protocol_error = true};
  }
  if (state_ == State::suspected) {
    state_ = drained_ ? State::fenced : State::fencing;
    return checked({.report = drained_});
  }
  state_ = State::fencing;
  drained_ = false;
  return checked({.take_down = true});
}

ReceiverSteps ReceiverLane::on_rebuild(uint32_t epoch) {
  saw(state_, ReceiverEvent::rebuild);
  if (state_ != State::fenced || epoch != epoch_ + 1) {
    return {.protocol_error = true};
  }
  state_ = State::opening;
  const uint32_t before = epoch_;
  epoch_ = epoch;
  invariants_.hold(epoch_ == before + 1, "a new path has the next epoch");
  return checked({.open = true});
}

}  // namespace nccl_ha::ha
