#include "ha/lane.h"

#include "ha/lane_coverage.h"
#include "ha/mutation.h"

namespace nccl_ha::ha {

LaneCoverage& lane_coverage() {
  static LaneCoverage counts;
  return counts;
}

SenderSteps SenderLane::on_ready() {
  saw(state_, SenderEvent::ready);
  if (state_ != State::opening) {
    return {};
  }
  state_ = State::usable;
  return {.use = true};
}

SenderSteps SenderLane::on_failed() {
  saw(state_, SenderEvent::failed);
  if (state_ == State::fencing || state_ == State::down) {
    return {};
  }
  state_ = State::fencing;
  drained_ = drained_ && mutated(Mutation::sender_drained_kept);
  const bool goes_on = mutated(Mutation::sender_goes_on);
  return {.take_down = !goes_on, .say_down = goes_on || drained_};
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
  return {.say_down = true};
}

SenderSteps SenderLane::on_fenced(uint32_t epoch) {
  saw(state_, SenderEvent::fenced);
  if (state_ != State::fencing || epoch != epoch_ || !drained_) {
    return {.protocol_error = true};
  }
  state_ = State::down;
  return {.apply_report = true, .reopen = true};
}

void SenderLane::reopened() {
  saw(state_, SenderEvent::reopened);
  state_ = State::opening;
  ++epoch_;
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
  return {.connect = state_ == State::opening};
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
  drained_ = drained_ && mutated(Mutation::receiver_drained_kept);
  return {.take_down = true, .say_suspect = true};
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
  return {.report = true};
}

ReceiverSteps ReceiverLane::on_down(uint32_t epoch) {
  saw(state_, ReceiverEvent::down);
  if (epoch != epoch_ || state_ == State::fencing || state_ == State::fenced) {
    return {.protocol_error = true};
  }
  if (mutated(Mutation::report_before_fence)) {
    state_ = State::fenced;
    return {.report = true};
  }
  if (state_ == State::suspected) {
    state_ = drained_ ? State::fenced : State::fencing;
    return {.report = drained_};
  }
  state_ = State::fencing;
  drained_ = drained_ && mutated(Mutation::receiver_drained_kept);
  return {.take_down = true};
}

ReceiverSteps ReceiverLane::on_rebuild(uint32_t epoch) {
  saw(state_, ReceiverEvent::rebuild);
  if (state_ != State::fenced || (epoch != epoch_ + 1 && !mutated(Mutation::any_epoch_rebuilt))) {
    return {.protocol_error = true};
  }
  state_ = State::opening;
  epoch_ = mutated(Mutation::old_epoch_kept) ? epoch_ : epoch;
  return {.open = true};
}

}  // namespace nccl_ha::ha
