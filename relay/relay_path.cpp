#include "relay/relay_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nccl_ha::relay {

using fabric::Completion;
using fabric::CompletionKind;
using fabric::CompletionStatus;
using fabric::PathState;

/// Messages of which the other end is told with one frame.
constexpr uint64_t acks_together = 8;

Errc RelayPath::post_write(const fabric::WritePost& post) {
  if (state_ == PathState::error) {
    return Errc::closed;
  }
  const Errc pushed = work_.sender.push(post);
  if (pushed == Errc::ok && state_ == PathState::ready) {
    pump();
  }
  return pushed;
}

Errc RelayPath::post_receive() {
  if (state_ == PathState::error) {
    return Errc::closed;
  }
  const Errc posted = work_.receiver.post();
  if (posted == Errc::ok && state_ == PathState::ready) {
    owe_ack();
  }
  return posted;
}

Errc RelayPath::post_flush(const fabric::FlushPost& post) {
  if (state_ != PathState::ready) {
    return Errc::closed;
  }
  return line_.place().direct ? Errc::invalid_usage : line_.post_flush(post, options_.domain);
}

void RelayPath::failure_domains(fabric::FailureDomains& domains) const {
  if (line_.path() != nullptr) {
    line_.path()->failure_domains(domains);
  }
  for (const NodeId relay : relays_) {
    domains.push_back({fabric::FailureDomain::Kind::host, text(relay)});
  }
}

void RelayPath::flush_acks() {
  ack();
  if (line_.path() != nullptr) {
    line_.path()->flush_acks();
  }
}

std::string RelayPath::describe() const {
  std::string over;
  for (const NodeId relay : relays_) {
    over += fmt::format("{}{}", over.empty() ? "" : ", ", next_.name_of(relay));
  }
  return fmt::format("relayed over {} to {}{}{}", over, next_.name_of(peer_.node),
                     line_.path() != nullptr ? ", first hop " : "",
                     line_.path() != nullptr ? line_.path()->describe() : "");
}

void RelayPath::pump() {
  if (work_.sender.pump()) {
    ack();  // travels along
  }
  if (const uint64_t lost = work_.sender.lost()) {
    break_path(
        CompletionStatus::local_protection, lost,
        nccl_ha::fail(Errc::invalid_usage, "memory that is to be sent is not registered any more"));
  } else if (work_.sender.busy()) {
    break_path(CompletionStatus::retry_exceeded, 0, *work_.sender.busy());
  }
}

void RelayPath::ack() {
  const uint64_t delivered = work_.receiver.delivered();
  const uint64_t posted = work_.receiver.posted();
  if (state_ == PathState::ready && (delivered != told_.delivered || posted != told_.posted) &&
      work_.sender.send_ack(delivered, posted)) {
    told_.delivered = delivered;
    told_.posted = posted;
    context_.timers().cancel(told_.later);
  }
}

/// At once where the other end may wait for it: for a message of which it has sent many, or for a
/// receive.
void RelayPath::owe_ack() {
  const uint64_t delivered = work_.receiver.delivered() - told_.delivered;
  const uint64_t posted = work_.receiver.posted() - told_.posted;
  if (delivered >= acks_together || posted >= std::max(options_.receives_max / 4, 1U)) {
    soon();  // together with those that follow
  } else if ((delivered != 0 || posted != 0) && !told_.later.armed()) {
    context_.timers().arm(told_.later, context_.now() + std::chrono::microseconds(
                                                            context_.config().dgram_ack_delay_us));
  }
}

void RelayPath::soon() {
  if (!soon_.armed()) {
    context_.timers().arm(soon_, context_.now());
  }
}

void RelayPath::on_soon() {
  if (state_ == PathState::error) {
    if (!std::exchange(ending_.told, true)) {
      owner_->on_path_state(*this, PathState::error, ending_.error);
    }
    flush_when_fenced();
    return;
  }
  if (state_ == PathState::connecting && request_ && !options_.active && line_.path() == nullptr) {
    if (auto accepted = accept(); !accepted) {
      refuse(accepted.error().what);
      break_path(CompletionStatus::device_fault, 0, accepted.error());
    }
    return;
  }
  ack();
  if (state_ == PathState::ready && link_down_) {
    const Error why = *std::exchange(link_down_, std::nullopt);
    owner_->on_path_link_down(*this, why);  // it may end the path
  }
}

void RelayPath::on_path_state(fabric::Path& path, PathState state, const Error& error) {
  if (state == PathState::error) {
    if (path.local_address().empty() && goes_round()) {
      return;
    }
    blame_way(error);
    // Which message it was, the hop's completions tell, if it was one.
    break_path(path.cause(), ending_.sequence, error);
    return;
  }
  if (state == PathState::ready) {
    become_ready();
  }
}

void RelayPath::await_stop() {
  if (line_.path() != nullptr) {
    line_.path()->await_stop();
  }
}

/// What of its hop's comes back then completes as it does after a fence.
void RelayPath::abandon() {
  if (line_.path() != nullptr) {
    line_.path()->abandon();
  }
}

void RelayPath::become_ready() {
  if (state_ != PathState::connecting) {
    return;
  }
  state_ = PathState::ready;
  context_.timers().cancel(deadline_);
  owner_->on_path_state(*this, state_, {});
  if (state_ == PathState::ready) {
    ack();
    pump();
  }
  if (link_down_) {
    soon();
  }
}

void RelayPath::on_path_address(fabric::Path& path) {
  (void)path;
  if (state_ != PathState::connecting || !stream_) {
    return;
  }
  if (options_.active) {
    ask();
  } else {
    answer();
  }
}

/// While the path comes about, whatever it is that does not work there: another way is to be tried
/// before it is again.
void RelayPath::refuse_way() {
  const bool comes_about = state_ == PathState::idle || state_ == PathState::connecting;
  if (comes_about && options_.active && !named_ && !relays_.empty()) {
    next_.refused(peer_.node, {options_.domain, own_.way});
  }
}

/// For a path that did not come about.
void RelayPath::blame_way(const Error& why) {
  if (state_ != PathState::connecting || !options_.active) {
    return;
  }
  refuse_way();
  const bool asked = line_.path() != nullptr;  // else there may be no way, and no neighbour
  if (asked) {
    blame_hop(hops_, line_, relays_.front(), context_.now(), why.message());
  }
}

void RelayPath::on_fence_stuck(fabric::Path& path, const Error& error) {
  (void)path;
  owner_->on_fence_stuck(*this, error);
}

void RelayPath::on_fence_late(fabric::Path& path) {
  (void)path;
  owner_->on_fence_late(*this);
}

void RelayPath::on_fence_proven(fabric::Path& path) {
  (void)path;
  owner_->on_fence_proven(*this);
}

void RelayPath::on_completion(const Completion& completion) {
  const bool received = completion.kind == CompletionKind::receive_immediate;
  const HopLine::Arrival arrival = received ? line_.on_receive(completion) : HopLine::Arrival{};
  const bool sent = !received && line_.on_sent(completion);
  if (completion.kind == CompletionKind::flush) {
    Completion flushed = completion;
    flushed.path = this;
    owner_->on_completion(flushed);
    if (state_ == PathState::error) {
      soon();
    }
    return;
  }
  const uint64_t sequence = sent ? work_.sender.on_sent(completion.id) : 0;
  if (completion.status != CompletionStatus::ok && completion.status != CompletionStatus::flushed &&
      ending_.sequence == 0) {
    ending_.sequence = sequence;
  }
  if (state_ == PathState::error) {
    soon();
  }
  if (completion.status != CompletionStatus::ok) {
    return;
  }
  become_ready();  // the hop tells of what came before it tells that it is ready
  if (state_ != PathState::ready) {
    return;
  }
  if (arrival.wrong || (arrival.slot && !on_frame(*arrival.slot))) {
    break_path(CompletionStatus::device_fault, 0,
               nccl_ha::fail(Errc::remote, "something came that the other end did not send"));
  }
  if (state_ == PathState::ready) {
    owe_ack();
    pump();
  }
}

/// False: the other end would not send that.
bool RelayPath::on_frame(uint32_t slot) {
  const auto frame = work_.receiver.frame(slot);
  bool good = frame.has_value();
  if (good && frame->kind == FrameKind::ack) {
    good = work_.sender.on_ack(
        frame->sequence, frame->remote_address,
        [&](const MessageSender::Message& message) { complete(message, CompletionStatus::ok); });
  } else if (good) {
    good = on_outcome(work_.receiver.on_message(*frame, slot));
  }
  if (state_ == PathState::ready) {
    line_.release();
  }
  return good;
}

bool RelayPath::on_outcome(MessageReceiver::Outcome outcome) {
  using Kind = MessageReceiver::Outcome::Kind;
  if (outcome.kind == Kind::complete) {
    outcome.completion.path = this;
    owner_->on_completion(outcome.completion);
  } else if (outcome.kind == Kind::refused) {
    refuse_write();
  }
  return outcome.kind != Kind::wrong;
}

/// As a device would: the sender's write fails, and nothing that was posted here.
void RelayPath::refuse_write() {
  if (stream_) {
    stream_->send(SetupRefusal{CompletionStatus::remote_access, work_.receiver.delivered() + 1,
                               "the receiver knows no such memory"});
  }
  break_path(CompletionStatus::flushed, 0,
             nccl_ha::fail(Errc::remote, "the peer writes to memory that is not this path's"));
}

void RelayPath::complete(const MessageSender::Message& message, CompletionStatus status) {
  if (message.unsignaled && status == CompletionStatus::ok) {
    return;
  }
  Completion completion;
  completion.id = message.id;
  completion.path = this;
  completion.status = status;
  completion.bytes = message.bytes;
  owner_->on_completion(completion);
}

void RelayPath::fail(const Error& why) { break_path(CompletionStatus::flushed, 0, why); }

void RelayPath::break_path(CompletionStatus status, uint64_t sequence, const Error& why) {
  if (state_ == PathState::error) {
    return;
  }
  state_ = PathState::error;
  ending_.cause = status;
  ending_.error = why;
  ending_.sequence = sequence != 0 ? sequence : ending_.sequence;
  context_.timers().cancel(deadline_);
  context_.timers().cancel(redial_);
  context_.timers().cancel(told_.later);
  if (stream_) {
    stream_->close();  // the neighbour ends what it holds, and tells the next one
  }
  if (line_.path() != nullptr) {
    line_.path()->fail(why);
  }
  soon();
}

void RelayPath::flush_when_fenced() {
  const bool fenced = line_.in_hop() == 0;
  if (!fenced || ending_.flushed) {
    return;
  }
  ending_.flushed = true;
  work_.sender.flush(ending_.sequence, ending_.cause,
                     [&](const MessageSender::Message& message, CompletionStatus status) {
                       complete(message, status);
                     });
  while (!work_.receiver.empty()) {
    work_.receiver.take_receive();
    Completion completion;
    completion.path = this;
    completion.kind = CompletionKind::receive_immediate;
    completion.status = CompletionStatus::flushed;
    owner_->on_completion(completion);
  }
}

}  // namespace nccl_ha::relay
