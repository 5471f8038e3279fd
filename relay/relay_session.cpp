#include "relay/relay_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nccl_ha::relay {

using fabric::Completion;
using fabric::CompletionKind;
using fabric::CompletionStatus;
using fabric::PathState;

/// How long the slots of a session that has ended are kept for a device that does not let go of
/// them.  After that its queue pair and their registration go, with which it loses them.
constexpr Duration fence_limit = std::chrono::seconds(5);
/// A hop that works has come up long before that.
constexpr Duration hop_usual = std::chrono::seconds(1);

/// Memory that this host reads, and its lengths, are not those of the connection's program.
static CompletionStatus as_told(CompletionStatus cause) {
  switch (cause) {
    case CompletionStatus::ok:
      return CompletionStatus::flushed;
    case CompletionStatus::local_protection:
    case CompletionStatus::length_error:
      return CompletionStatus::device_fault;
    default:
      return cause;
  }
}

RelaySession::RelaySession(HopSource& hops, const RelayOptions& options, Owner& owner,
                           std::unique_ptr<SessionStream> stream, SetupRequest request,
                           const NextHop& next, Share share)
    : hops_(hops),
      options_(options),
      owner_(owner),
      request_(std::move(request)),
      next_(next),
      share_(std::move(share)),
      legs_{Leg(hops), Leg(hops)},
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
  domain_ = context.secrets().draw().told();
  chunk_bytes_ = share_.chunk_bytes;
  limit_.begin(context.moment(), options_.setup_limit);
  context.timers().arm(deadline_, context.now() + options_.setup_limit);
  legs_[up].stream->set_owner(this);
  if (auto begun = begin(); !begun) {
    const Error& error = begun.error();
    end({CompletionStatus::device_fault, 0, error.message(), error.code == Errc::again},
        error.message());
  }
}

/// Errc::again: it is to be asked with a hop of another kind.
Result<void> RelaySession::begin() {
  for (const Side side : {up, down}) {
    // The host before this one has the slots that it asked with, the next one at most as many as
    // this one.
    const uint16_t theirs_most = side == up ? request_.window.slots : share_.slots;
    legs_[side].line.allocate(share_.slots, chunk_bytes_, theirs_most);
  }
  const auto known = places(up);
  if (!known) {
    return known.error();
  }
  const auto place = place_of_kind(*known, request_.kind);
  if (!place) {
    return fail(Errc::again, "this relay has no such hop at that cable");
  }
  if (auto made = make_hop(up, *place); !made) {
    return place->direct ? made : fail(Errc::again, made.error().message());
  }
  open_forwarders();
  // The host before this one learns the address last, so that it is the one that connects second.
  if (auto connected = legs_[up].line.connect(request_.hop_address, request_.window, chunk_bytes_);
      !connected) {
    return place->direct ? connected : fail(Errc::again, connected.error().message());
  }
  // Not before it is known that this hop can be made: who asked may have to ask by another one, and
  // whoever comes further on is asked once.
  return legs_[up].line.path()->address_ready() ? dial_down() : Result<void>();
}

Result<void> RelaySession::dial_down() {
  // Who asked for encryption gets it on the whole route.
  const auto shared = legs_[up].stream->shared();
  legs_[down].stream.reset(new SessionStream(*context_, this, {options_.key, nullptr, options_.job},
                                             shared && shared->encrypts));
  const bool last = request_.place + 2U == request_.nodes.size();
  return legs_[down].stream->dial(next_, last ? request_.ticket : Ticket{});
}

Result<std::vector<HopPlace>> RelaySession::places(Side side) {
  const auto local = legs_[side].stream->local_address();
  if (!local) {
    return local.error();
  }
  return hops_.places(reinterpret_cast<const sockaddr*>(&*local));
}

Result<void> RelaySession::make_hop(Side side, const HopPlace& place) {
  const auto local = legs_[side].stream->local_address();
  if (!local) {
    return local.error();
  }
  fabric::PathOptions options;
  options.domain = domain_;
  // What comes by one hop leaves by the other.
  for (Leg& leg : legs_) {
    if (auto entered = leg.line.enter(place, options); !entered) {
      return entered;
    }
  }
  // Beside frames, the pieces that go straight to their places.
  legs_[side].line.size(options, share_.slots);
  options.active = side == down;
  options.shared = legs_[side].stream->shared();
  options.connect_limit = hop_limit(place, options_.setup_limit);
  auto hop =
      hops_.make_hop(*context_, place, reinterpret_cast<const sockaddr*>(&*local), options, this);
  if (!hop) {
    return hop.error();
  }
  legs_[side].line.take(std::move(*hop), place);
  return {};
}

void RelaySession::on_session_open(SessionStream& stream) {
  if (phase_ != Phase::setting_up) {
    return;
  }
  (void)stream;
  if (auto asked = ask_down(); !asked) {
    end({CompletionStatus::device_fault, 0, asked.error().message()}, asked.error().message());
  }
}

/// By the best hop that is left, where one that cannot be made leaves the next one.
Result<void> RelaySession::ask_down() {
  const auto known = places(down);
  if (!known) {
    return known.error();
  }
  auto made = make_best_hop(hops_, *known, next_node(), context_->now(), choice_, false,
                            [this](const HopPlace& place) { return make_hop(down, place); });
  if (made && legs_[down].line.path()->address_ready()) {
    ask();
  }
  return made;
}

void RelaySession::ask() {
  SetupRequest request = request_;
  request.place = static_cast<uint8_t>(request_.place + 1);
  request.chunk_bytes = chunk_bytes_;
  request.kind = legs_[down].line.place().at.kind;
  request.window = legs_[down].line.window();
  const auto address = legs_[down].line.path()->local_address();
  request.hop_address.assign(address.begin(), address.end());
  legs_[down].stream->send(request);
}

void RelaySession::on_path_address(fabric::Path& path) {
  if (phase_ != Phase::setting_up) {
    return;
  }
  if (side_of(&path) == down) {
    ask();
  } else if (legs_[down].stream) {
    answer();
  } else if (auto dialled = dial_down(); !dialled) {
    end({CompletionStatus::device_fault, 0, dialled.error().message()}, dialled.error().message());
  }
}

/// When the way from here on is open, and the neighbour can be told where its hop ends.
void RelaySession::answer() {
  const fabric::Path& hop = *legs_[up].line.path();
  if (!down_open_ || !hop.address_ready()) {
    return;
  }
  SetupAck ack;
  ack.chunk_bytes = chunk_bytes_;
  ack.window = legs_[up].line.window();
  const auto address = hop.local_address();
  ack.hop_address.assign(address.begin(), address.end());
  legs_[up].stream->send(ack);
  forwards_[up].pump();
}

void RelaySession::on_session_message(SessionStream& stream, SessionMessage message) {
  if (phase_ == Phase::ended) {
    return;
  }
  if (const auto* refusal = std::get_if<SetupRefusal>(&message)) {
    const bool down_asked = &stream == legs_[down].stream.get() && !down_open_;
    if (refusal->other_kind && down_asked && legs_[down].line.path() != nullptr &&
        legs_[down].line.path()->state() == PathState::idle) {
      legs_[down].line.reset();
      ++choice_;
      if (auto dialled = dial_down(); !dialled) {
        end({CompletionStatus::device_fault, 0, dialled.error().message()},
            dialled.error().message());
      }
      return;
    }
    if (down_asked || down_is_late()) {
      blame_down(refusal->text);
    }
    // It failed at a message that this relay had sent there.
    end(*refusal, refusal->text, &stream == legs_[up].stream.get() ? down : up);
    return;
  }
  if (std::holds_alternative<SessionLinkDown>(message)) {
    const Side from = &stream == legs_[up].stream.get() ? up : down;
    if (phase_ == Phase::open) {
      legs_[opposite(from)].stream->send(message);
    }
    return;
  }
  if (const auto* key = std::get_if<SessionKey>(&message)) {
    const Side from = &stream == legs_[up].stream.get() ? up : down;
    if (!forwards_[opposite(from)].on_key(key->key, key->remote_key)) {
      end({CompletionStatus::device_fault, 0, "a memory key that nobody asked for"},
          "a memory key that nobody asked for");
    }
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
  chunk_bytes_ = ack.chunk_bytes;
  legs_[up].line.agree(chunk_bytes_);  // what comes there has to fit into the slots further on
  down_asked_at_ = context_->moment();
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
  options.ask_key = [this](uint32_t key) { legs_[down].stream->send(SessionKeyQuestion{key}); };
  forwards_[up].open(options, share_.egresses[down]);
  std::swap(options.origin, options.destination);
  options.hop = static_cast<uint16_t>(options.hops - 1 - options.hop);
  options.ask_key = [this](uint32_t key) { legs_[up].stream->send(SessionKeyQuestion{key}); };
  forwards_[down].open(options, share_.egresses[up]);
}

void RelaySession::on_path_state(fabric::Path& path, PathState state, const Error& error) {
  if (phase_ == Phase::ended) {
    return;
  }
  const Side side = side_of(&path);
  if (state == PathState::error) {
    if (side == down && path.local_address().empty() && !legs_[down].line.place().direct) {
      // It cannot be made, and nobody was told of it.
      legs_[down].line.reset();
      ++choice_;
      on_session_open(*legs_[down].stream);
      return;
    }
    if (side == down) {
      blame_down(error.message());
    }
    // Completions tell which message it was; they come before it where there is one.
    const bool other_kind = side == up && !down_open_ && !legs_[up].line.place().direct;
    end({as_told(path.cause()), 0, error.message(), other_kind}, error.message());
    return;
  }
  if (state != PathState::ready) {
    return;
  }
  if (side == down) {
    down_open_ = true;
    answer();
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
  const bool received = completion.kind == CompletionKind::receive_immediate;
  const HopLine::Arrival arrival = received ? line.on_receive(completion) : HopLine::Arrival{};
  const bool passed_on = !received && line.on_sent(completion);
  if (phase_ == Phase::ended) {
    if (idle()) {
      tell_end();
    }
    return;
  }
  if (completion.status != CompletionStatus::ok) {
    if (completion.status != CompletionStatus::flushed) {
      end({as_told(completion.status), passed_on ? leaving.sequence_of(completion.id) : 0,
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

bool RelaySession::on_link_down(const std::string& interface) {
  const auto lost = [&](Side side) {
    fabric::FailureDomains domains;
    legs_[side].line.path()->failure_domains(domains);
    return fabric::contains(domains, {fabric::FailureDomain::Kind::local_nic, interface});
  };
  if (phase_ != Phase::open || lost(up) == lost(down)) {
    return false;  // over one interface both ways: nobody can be told
  }
  const Side other = lost(up) ? down : up;
  legs_[other].stream->send(
      SessionLinkDown{fmt::format("{} of relay {} has no link", interface, text(options_.self))});
  return true;
}

void RelaySession::blame_down(const std::string& why) {
  if (phase_ == Phase::setting_up && !down_open_) {
    blame_hop(hops_, legs_[down].line, next_node(), context_->now(), why);
  }
}

/// Who asked may have less patience than the hop, and ends the session first.
bool RelaySession::down_is_late() const {
  return down_asked_at_ && context_->moment().ran_since(*down_asked_at_) >= hop_usual;
}

void RelaySession::on_fence_stuck(fabric::Path& path, const Error& error) {
  (void)path;
  end({CompletionStatus::device_fault, 0, error.message()}, error.message());
}

void RelaySession::on_session_lost(SessionStream& stream, const Error& error) {
  if (&stream == legs_[down].stream.get() || down_is_late()) {
    blame_down(error.message());
  }
  end({CompletionStatus::retry_exceeded, 0, "a neighbour of the relay is gone: " + error.message()},
      error.message());
}

void RelaySession::on_deadline() {
  if (phase_ == Phase::ended) {
    tell_end();
    return;
  }
  if (const Duration left = limit_.left(context_->moment(), deadline_.deadline());
      left > Duration(0)) {
    context_->timers().arm(deadline_, context_->now() + left);
    return;
  }
  blame_down("the route did not come about in time");
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
    refusal = {CompletionStatus::retry_exceeded, 0, why, refusal.other_kind};
  }
  for (const Side side : {up, down}) {
    Leg& leg = legs_[side];
    if (leg.stream) {
      SetupRefusal here = refusal;
      if (from && from != side) {
        here.status = CompletionStatus::flushed;  // what it has sent did not fail
        here.sequence = 0;
      }
      here.other_kind = refusal.other_kind && side == up;
      leg.stream->send(here);
      leg.stream->close();
    }
    if (leg.line.path() != nullptr) {
      leg.line.path()->fail(fail(Errc::closed, why));
    }
  }
  why_ = why;
  if (idle()) {
    tell_end();
  } else {
    context_->timers().arm(deadline_, context_->now() + fence_limit);
  }
}

/// No device writes to the slots any more, or reads them.  What the processor carries ends with the
/// hop.
bool RelaySession::idle() const {
  return std::all_of(legs_.begin(), legs_.end(), [](const Leg& leg) {
    return leg.line.path() == nullptr || leg.line.place().direct || leg.line.in_hop() == 0;
  });
}

void RelaySession::tell_end() {
  context_->timers().cancel(deadline_);
  if (!std::exchange(told_, true)) {
    owner_.on_session_end(*this, why_);
  }
}

void RelaySession::stop() {
  end({}, "this relay stops");
  tell_end();
}

}  // namespace nccl_ha::relay
