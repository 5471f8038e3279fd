// The end of a connection: its failure, its last words, and the peer's.
#include <new>
#include <utility>

#include "actors/connection/connection.h"
#include "runtime/base/log.h"

namespace nccl_ha {

void Connection::fail(const Error& error, bool tell_peer) {
  if (!state_.live()) {
    return;
  }
  const bool told = state_.phase == ConnectionPhase::usable;
  failure_ = error;
  NHA_LOG_WARN("connection to {} failed: {}", peer_text(), error.message());
  state_.note(TraceEvent::transfer_failed, static_cast<uint64_t>(error.code), 0);
  if (tell_peer || linger_.peer_ends()) {
    part(tell_peer ? encode(ControlType::failure, Refusal{error.code, error.what})
                   : std::vector<std::byte>(),
         error);
  } else {
    stop_timers();
    end_linger(error);
    paths_.await_stops();
  }
  if (told && error.code != Errc::closed) {
    state_.ask_trace(TraceCause::failure);  // after what the peer waits for
  }
  if (Channel* channel = side_->channel(); channel != nullptr) {
    channel->set_failed(error);
  }
  side_->on_failure(error, told);
}

/// Where there is no memory for a line in the log and last words, without them: the peer finds out
/// by itself.  The caller hears of it when no path writes into memory any more, as ever.
void Connection::on_no_memory() {
  const Error error = nccl_ha::fail(Errc::no_memory, "out of memory");
  const bool told = state_.phase == ConnectionPhase::usable;
  try {
    fail(error, true);
  } catch (const std::bad_alloc&) {
    if (!state_.live()) {
      return;
    }
    failure_ = error;
    stop_timers();
    end_linger(error);
    paths_.await_stops();
    if (Channel* channel = side_->channel(); channel != nullptr) {
      channel->set_failed(error);
    }
    side_->on_failure(error, told);
  }
}

/// The peer's last words: no more than what it said first.
void Connection::refused(const std::optional<Refusal>& refusal) {
  if (state_.lingers()) {
    end_as_peer_left();
    return;
  }
  hear_last_words();
  Error error = from_peer(refusal ? refusal->text : "(unreadable)");
  // What it refuses in the handshake may be this side's to mend; later the fault is its own.
  if (refusal && state_.phase == ConnectionPhase::handshake) {
    error.code = refusal->code;
  }
  fail(error, false);
}

void Connection::on_peer_gone(const Error& why) {
  if (state_.lingers()) {
    end_as_peer_left();
  } else {
    side_->on_peer_gone(why);
  }
}

/// Nobody waits for this side's last words any more.
void Connection::end_as_peer_left() {
  linger_.on_peer_left();
  look_whether_over();
}

void Connection::hear_last_words() {
  linger_.on_last_words(state_.context->now());
  if (state_.lingers()) {
    state_.context->timers().arm(linger_timer_, linger_.next_look(state_.context->now()));
  }
  control_.boxes().answer_last_words();
}

void Connection::part_with_peer(const Error& why) {
  hear_last_words();
  part({}, why);
}

void Connection::close() {
  closed_ = true;
  if (state_.live() && side_->waits_to_close()) {
    state_.context->request_stream_turns(1000);
  } else if (state_.live()) {
    // For the peer a connection that was closed is one that this caller had.
    const bool had = state_.phase == ConnectionPhase::usable;
    part(had ? encode(side_->last_words())
             : encode(ControlType::failure,
                      Refusal{Errc::remote, "the peer gave up while connecting"}),
         nccl_ha::fail(Errc::closed, "connection closed"),
         had && side_->all_done() ? patience_of_peer() : ha::CloseLinger::limit);
  } else if (!state_.lingers()) {
    finish();
  }
}

void Connection::on_all_sent() {
  if (closed_ && state_.live()) {
    close();
  }
}

void Connection::stop() {
  if (state_.phase == ConnectionPhase::gone) {
    return;
  }
  const Error why = nccl_ha::fail(Errc::closed, "the network engine was shut down");
  if (state_.phase >= ConnectionPhase::usable) {
    linger_.hurry();
    close();
    if (state_.lingers()) {
      state_.context->timers().arm(linger_timer_, linger_.next_look(state_.context->now()));
    }
  } else {
    control_.send_plain(encode(ControlType::failure, Refusal{Errc::remote, why.what}));
    finish();
  }
  if (Channel* channel = side_->channel(); channel != nullptr) {
    channel->set_failed(why);
  }
}

/// For want of memory nothing is said, and the end takes its course.
template <class Call>
void Connection::say_last(Call&& call) {
  try {
    call();
  } catch (const std::bad_alloc&) {
    return;
  }
}

/// Nothing of the connection goes on but what makes the peer know.  The caller may use its memory
/// for something else when it hears of the end, or its close has returned: no path writes or reads
/// it any more.
void Connection::part(std::vector<std::byte> words, const Error& why, Duration wanted) {
  const bool lingers = state_.backup && state_.ready();
  stop_timers();
  if (!lingers) {
    if (!words.empty()) {
      say_last([&] { control_.send_plain(words); });
    }
    end_linger(why);
    paths_.await_stops();
    return;
  }
  state_.enter(ConnectionPhase::lingering);
  for (Lane& lane : paths_.lanes()) {
    if (lane.usable && side_->exposed(lane, closed_)) {
      lane.set_usable(false);
      lane.path().fail(why);
    }
  }
  linger_.begin(state_.context->now(), wanted);
  say_last([&] {
    if (words.empty()) {
      control_.send_confirm();
    } else {
      control_.send(std::move(words));
    }
  });
  state_.context->timers().arm(linger_timer_, linger_.next_look(state_.context->now()));
  state_.context->request_stream_turns(1000);
  paths_.await_stops();
  look_whether_over();
}

/// So long a peer to which no way leads waits for what only this side can tell it.
Duration Connection::patience_of_peer() const {
  const Config& config = state_.context->config();
  return std::chrono::milliseconds(config.heartbeat_ms + 3 * config.rto_ms +
                                   config.retry_budget_ms);
}

void Connection::look_whether_over() {
  if (state_.lingers() &&
      linger_.is_over(!control_.any_unconfirmed(), paths_.any_usable(), state_.context->now())) {
    static_cast<void>(state_.sound(linger_));
    end_linger(nccl_ha::fail(Errc::closed, "connection closed"));
  }
}

/// Nothing confirms the last words.  The stream may be silent, and the peer gone, without a sign.
void Connection::on_linger_timer() {
  look_whether_over();
  if (state_.lingers()) {
    state_.context->timers().arm(linger_timer_, linger_.next_look(state_.context->now()));
    control_.rejoin().start(Duration(0),
                            nccl_ha::fail(Errc::timed_out, "nothing confirms its last words"));
  }
}

void Connection::end_linger(const Error& why) {
  if (closed_) {
    finish();
    return;
  }
  state_.enter(ConnectionPhase::over);
  control_.rejoin().stop();
  state_.context->timers().cancel(linger_timer_);
  paths_.fail_all(why);
  control_.end_stream();
}

void Connection::finish() {
  if (state_.phase == ConnectionPhase::gone) {
    return;
  }
  state_.enter(ConnectionPhase::gone);
  control_.rejoin().stop();
  stop_timers();
  control_.end_stream();
  tell_summary();
  paths_.fail_all(nccl_ha::fail(Errc::closed, "connection closed"));
  state_.note(TraceEvent::actor_closed, 0, 0);
  state_.context->remove_actor(id());
}

/// What became of it, in one line.
void Connection::tell_summary() const {
  const ConnectionCounters& counted = *state_.counters;
  if (counted.sends + counted.receives == 0) {
    return;  // nothing went over it
  }
  NHA_LOG_INFO(
      "{} {} closed: {} sends ({} bytes, {} of them eager), {} groups of receives ({} bytes, {} "
      "messages before their receive); paths went down {} "
      "times and came back {} times, the longest stall took {} ms, {} chunks went again ({} "
      "bytes); "
      "over {}",
      side_->name(), peer_text(), counted.sends.get(), counted.bytes_sent.get(),
      counted.eager_sends.get(), counted.receives.get(), counted.bytes_received.get(),
      counted.eager_early.get(), counted.paths_down.get(), counted.paths_back.get(),
      counted.longest_stall_ns.get() / 1'000'000, counted.chunks_again.get(),
      counted.bytes_again.get(), paths_.text());
}

/// Memory of the caller's may be gone: only what the peer has heard counts.
void Connection::on_late_completion(const fabric::Completion& completion) {
  if (!state_.lingers()) {
    return;
  }
  if (ControlBoxes::is_answer(completion)) {
    linger_.on_answer_arrived();
  }
  static_cast<void>(control_.boxes().on_completion(completion, paths_.lane_of(completion.path)));
  look_whether_over();
}

}  // namespace nccl_ha
