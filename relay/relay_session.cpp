#include "relay/relay_session.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/mutation.h"

namespace nccl_ha::relay {

using fabric::Completion;
using fabric::CompletionKind;
using fabric::CompletionStatus;
using fabric::PathState;

RelaySession::RelaySession(HopSource& hops, const RelayOptions& options, Owner& owner,
                           std::unique_ptr<SessionStream> stream, SetupRequest request,
                           const NextHop& next, Share share)
    : hops_(hops),
      options_(options),
      owner_(owner),
      request_(std::move(request)),
      next_(next),
      share_(std::move(share)),
      legs_{Leg(hops.memory()), Leg(hops.memory())},
      forwards_{{{legs_[up].line, legs_[down].line}, {legs_[down].line, legs_[up].line}}} {
  legs_[up].stream = std::move(stream);
  deadline_.bind([](void* self) { static_cast<RelaySession*>(self)->on_deadline(); }, this);
}

RelaySession::~RelaySession() {
  if (context_ != nullptr) {
    context_->timers().cancel(deadline_);
  }
  // Each is read and written by both hops.
  legs_[up].line.reset();
  legs_[down].line.reset();
}

void RelaySession::start(Context& context) {
  context_ = &context;
  domain_ = context.random().next();
  chunk_bytes_ = share_.chunk_bytes;
  context.timers().arm(deadline_, context.now() + options_.setup_limit);
  legs_[up].stream->set_owner(this);
  if (auto begun = begin(); !begun) {
    end({CompletionStatus::device_fault, 0, begun.error().message()}, begun.error().message());
  }
}

Result<void> RelaySession::begin() {
  for (const Side side : {up, down}) {
    // The host before this one has the slots that it asked with, the next one at most as many as
    // this one.
    const uint16_t theirs_most = side == up ? request_.window.slots : share_.slots;
    if (auto made = legs_[side].line.allocate(domain_, share_.slots, chunk_bytes_, theirs_most);
        !made) {
      return made;
    }
  }
  if (auto made = make_hop(up); !made) {
    return made;
  }
  open_forwarders();
  // The host before this one learns the address last, so that it is the one that connects second.
  if (auto connected = legs_[up].line.connect(request_.hop_address, request_.window, chunk_bytes_);
      !connected) {
    return connected;
  }
  legs_[down].stream.reset(new SessionStream(*context_, this, options_.key));
  return legs_[down].stream->dial(next_);
}

Result<void> RelaySession::make_hop(Side side) {
  const auto local = legs_[side].stream->local_address();
  if (!local) {
    return local.error();
  }
  fabric::PathOptions options;
  options.domain = domain_;
  // Beside frames, the pieces that go straight to their places.
  legs_[side].line.size(options, share_.slots);
  options.active = side == down;
  options.connect_limit = options_.setup_limit;
  auto hop = hops_.make_hop(*context_, reinterpret_cast<const sockaddr*>(&*local), options, this);
  if (!hop) {
    return hop.error();
  }
  legs_[side].line.take(std::move(*hop));
  return {};
}

void RelaySession::on_session_open(SessionStream& stream) {
  if (phase_ != Phase::setting_up) {
    return;
  }
  if (auto made = make_hop(down); !made) {
    end({CompletionStatus::device_fault, 0, made.error().message()}, made.error().message());
    return;
  }
  SetupRequest request = request_;
  request.place = static_cast<uint8_t>(request_.place + 1);
  request.chunk_bytes = chunk_bytes_;
  request.window = legs_[down].line.window();
  const auto address = legs_[down].line.path()->local_address();
  request.hop_address.assign(address.begin(), address.end());
  stream.send(request);
}

void RelaySession::on_session_message(SessionStream& stream, SessionMessage message) {
  if (phase_ == Phase::ended) {
    return;
  }
  if (const auto* refusal = std::get_if<SetupRefusal>(&message)) {
    // It failed at a message that this relay had sent there.
    end(*refusal, refusal->text, &stream == legs_[up].stream.get() ? down : up);
    return;
  }
  const auto* ack = std::get_if<SetupAck>(&message);
  const fabric::Path* hop = legs_[down].line.path();
  const bool expected = ack != nullptr && &stream == legs_[down].stream.get() && hop != nullptr &&
                        hop->state() == PathState::idle && ack->chunk_bytes <= chunk_bytes_;
  const Result<void> opened =
      expected ? open_down(*ack) : fail(Errc::remote, "an answer that nobody asked for");
  if (!opened) {
    end({CompletionStatus::device_fault, 0, opened.error().message()}, opened.error().message());
  }
}

Result<void> RelaySession::open_down(const SetupAck& ack) {
  if (mutated(Mutation::pieces_not_agreed)) {
    return legs_[down].line.connect(ack.hop_address, ack.window, ack.chunk_bytes);
  }
  chunk_bytes_ = ack.chunk_bytes;
  legs_[up].line.agree(chunk_bytes_);  // what comes there has to fit into the slots further on
  return legs_[down].line.connect(ack.hop_address, ack.window, chunk_bytes_);
}

void RelaySession::open_forwarders() {
  Forwarder::Options options;
  options.session = request_.session;
  options.origin = request_.nodes.front();
  options.destination = request_.nodes.back();
  options.hops = static_cast<uint16_t>(request_.nodes.size() - 2);
  options.hop = static_cast<uint16_t>(request_.place - 1);
  options.store = options_.store;
  forwards_[up].open(options, share_.egresses[down]);
  std::swap(options.origin, options.destination);
  options.hop = static_cast<uint16_t>(options.hops - 1 - options.hop);
  forwards_[down].open(options, share_.egresses[up]);
}

void RelaySession::on_path_state(fabric::Path& path, PathState state, const Error& error) {
  if (phase_ == Phase::ended) {
    return;
  }
  const Side side = side_of(&path);
  if (state == PathState::error) {
    // Completions tell which message it was; they come before it where there is one.
    end({path.cause() == CompletionStatus::ok ? CompletionStatus::flushed : path.cause(), 0,
         error.message()},
        error.message());
    return;
  }
  if (state != PathState::ready) {
    return;
  }
  if (side == down) {
    SetupAck ack;
    ack.chunk_bytes = chunk_bytes_;
    ack.window = legs_[up].line.window();
    const auto address = legs_[up].line.path()->local_address();
    ack.hop_address.assign(address.begin(), address.end());
    legs_[up].stream->send(ack);
    forwards_[up].pump();
  } else {
    phase_ = Phase::open;
    context_->timers().cancel(deadline_);
    forwards_[down].pump();
  }
}

void RelaySession::on_completion(const Completion& completion) {
  const Side side = side_of(completion.path);
  HopLine& line = legs_[side].line;
  // What is posted here came in at the other leg.
  Forwarder& leaving = forwards_[opposite(side)];
  const bool received = completion.kind == CompletionKind::receive ||
                        completion.kind == CompletionKind::receive_immediate;
  const HopLine::Arrival arrival = received ? line.on_receive(completion) : HopLine::Arrival{};
  const bool passed_on = !received && line.on_sent(completion);
  if (phase_ == Phase::ended) {
    return;
  }
  if (completion.status != CompletionStatus::ok) {
    if (completion.status != CompletionStatus::flushed) {
      end({completion.status, passed_on ? leaving.sequence_of(completion.id) : 0,
           std::string("a hop failed: ") + to_text(completion.status)},
          to_text(completion.status), opposite(side));
    }
    return;  // the path's state is told too
  }
  if (passed_on) {
    leaving.on_sent(completion.id);
    return;
  }
  Result<void> good;
  if (arrival.wrong) {
    good = fail(Errc::remote, "a neighbour on the route breaks the rules");
  } else if (arrival.slot) {
    good = forwards_[side].on_frame(*arrival.slot);
  } else {
    leaving.pump();  // there may be free slots
  }
  if (!good) {
    end({CompletionStatus::device_fault, 0, good.error().message()}, good.error().message());
  }
}

void RelaySession::on_fence_failed(fabric::Path& path, const Error& error) {
  (void)path;
  end({CompletionStatus::device_fault, 0, error.message()}, error.message());
}

void RelaySession::on_session_lost(SessionStream& stream, const Error& error) {
  (void)stream;
  if (mutated(Mutation::session_outlives_neighbour)) {
    return;
  }
  end({CompletionStatus::retry_exceeded, 0, "a neighbour of the relay is gone: " + error.message()},
      error.message());
}

void RelaySession::on_deadline() {
  end({CompletionStatus::retry_exceeded, 0, "the route did not come about in time"},
      "the route did not come about in time");
}

void RelaySession::end(const SetupRefusal& told, const std::string& why, std::optional<Side> from) {
  if (phase_ == Phase::ended) {
    return;
  }
  phase_ = Phase::ended;
  context_->timers().cancel(deadline_);
  for (Forwarder& forward : forwards_) {
    forward.close();
  }
  SetupRefusal refusal = told;
  if (refusal.text.empty()) {
    refusal = {CompletionStatus::retry_exceeded, 0, why};
  }
  for (const Side side : {up, down}) {
    Leg& leg = legs_[side];
    if (leg.stream) {
      SetupRefusal here = refusal;
      if (from && from != side && !mutated(Mutation::cause_told_to_both)) {
        here.status = CompletionStatus::flushed;  // what it has sent did not fail
        here.sequence = 0;
      }
      leg.stream->send(here);
      leg.stream->close();
    }
    if (leg.line.path() != nullptr) {
      leg.line.path()->fail(fail(Errc::closed, why));
    }
  }
  owner_.on_session_end(*this, why);
}

}  // namespace nccl_ha::relay
