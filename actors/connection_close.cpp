// The end of a connection: its last words, and the peer's.
#include <utility>

#include "actors/connection.h"
#include "ha/mutation.h"
#include "runtime/log.h"

namespace nccl_ha {

void Connection::on_close() {
  if (!failed_) {
    part(encode(last_words()), fail(Errc::closed, "connection closed"), true);
  } else if (linger_.under_way()) {
    ends_after_linger_ = true;
  } else {
    finish();
  }
}

void Connection::stop() {
  if (finished_) {
    return;
  }
  const Error why = fail(Errc::closed, "the network engine was shut down");
  if (channel() != nullptr) {
    channel()->set_failed(why);
  }
  if (failed_ || told_) {
    on_close();
  } else {
    write_stream(encode(ControlType::failure, Refusal{Errc::remote, why.what}));
    finish();
  }
}

/// Nothing of the connection goes on but what makes the peer know.
void Connection::part(std::vector<std::byte> words, const Error& why, bool ends) {
  failed_ = true;
  ends_after_linger_ = ends;
  disarm_deadline();
  context_->timers().cancel(budget_timer_);
  context_->timers().cancel(heartbeat_timer_);
  if (!backup_ || !ready_) {
    if (!words.empty()) {
      write_stream(words);
    }
    end_linger(why);
    return;
  }
  for (Lane& lane : lanes_) {
    if (lane.usable && exposed(lane) && !ha::mutated(ha::Mutation::memory_left_open)) {
      lane.usable = false;
      lane.path().fail(why);
    }
  }
  linger_.begin(context_->now());
  if (words.empty()) {
    send_confirm();
  } else {
    send_control(std::move(words));
  }
  context_->timers().arm(linger_timer_, linger_.until());
  context_->request_stream_turns(1000);
  look_whether_over();
}

void Connection::look_whether_over() {
  if (linger_.under_way() && linger_.is_over(!any_unconfirmed(), any_usable(), context_->now())) {
    end_linger(fail(Errc::closed, "connection closed"));
  }
}

void Connection::end_linger(const Error& why) {
  linger_.end();
  rejoin_.stop();
  context_->timers().cancel(linger_timer_);
  if (ends_after_linger_) {
    finish();
    return;
  }
  fail_paths(why);
  end_stream();
}

/// It lingers by itself until what was written is out.
void Connection::end_stream() {
  if (stream_) {
    stream_->set_owner(nullptr);
    stream_->shutdown_then_close();
    stream_.reset();
  }
}

/// After this side's end: only what the peer has taken counts, and whether it ends too.
void Connection::hear_last(const ControlReader::Message& message) {
  if (!sequencer_.confirmed(message.confirmed)) {
    return;
  }
  for (Lane& lane : lanes_) {
    push_control(lane);
  }
  if (message.type == ControlType::retire) {
    stream_.reset();
  }
  if (message.number != 0) {
    confirm_due_ = true;
    if (sequencer_.judge(message.number) == ha::ControlSequencer::Verdict::take &&
        (message.type == ControlType::close || message.type == ControlType::failure)) {
      linger_.on_last_words();
    }
  }
}

/// The same of what a path brings: memory of the caller's may be gone.
void Connection::on_late_completion(const fabric::Completion& completion) {
  if (!linger_.under_way() || finished_) {
    return;
  }
  if (completion.kind == fabric::CompletionKind::write && completion.id == answer_id &&
      completion.status == fabric::CompletionStatus::ok) {
    linger_.on_answer_arrived();
  }
  static_cast<void>(on_control_completion(completion, lanes_[lane_of(completion.path)]));
  look_whether_over();
}

}  // namespace nccl_ha
