#include "actors/connection/control_link.h"

#include <fmt/format.h>

#include <utility>

#include "actors/connection/failover_log.h"
#include "runtime/base/log.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha {
namespace {

/// Ends a stream that another one has taken the place of.
void retire_stream(std::unique_ptr<Stream> stream) {
  if (stream) {
    stream->set_owner(nullptr);
    static_cast<void>(stream->write(encode_retire()));
    stream->shutdown_then_close();
  }
}

}  // namespace

ControlLink::~ControlLink() {
  if (door_) {
    door_->leave(rejoin_token_);
  }
}

Result<void> ControlLink::dial(const Route& route) {
  auto stream = connect(route, this);
  if (!stream) {
    return stream.error();
  }
  stream_ = std::move(*stream);
  unheard_.begin(state_.context->moment());
  return {};
}

/// Not in the session of a stream that this connection has given up.
Result<std::unique_ptr<Stream>> ControlLink::connect(const Route& route, StreamOwner* owner) {
  const Config& config = state_.context->config();
  if (config.peer_sessions && config.enable_backup &&
      state_.version >= first_version_with_sessions) {
    sessions_ = PeerSessions::of(*state_.context);
    return sessions_->connect(route, session_, owner);
  }
  const auto* from =
      route.from.ss_family == 0 ? nullptr : reinterpret_cast<const sockaddr*>(&route.from);
  return state_.context->peer_streams().connect_tcp(reinterpret_cast<const sockaddr*>(&route.to),
                                                    from, owner);
}

void ControlLink::adopt(std::unique_ptr<Stream> stream, ControlReader reader) {
  stream_ = std::move(stream);
  session_ = stream_->session();
  if (session_ != 0) {
    sessions_ = PeerSessions::of(*state_.context);  // which goes on with the numbers
  }
  unheard_.begin(state_.context->moment());
  stream_->set_owner(this);
  reader_ = std::move(reader);
  state_.context->request_stream_turns(1000);
}

Duration ControlLink::unheard_for() {
  return unheard_.lasts(!stream_ || stream_->all_arrived(), state_.context->moment());
}

std::string ControlLink::peer_address() const {
  if (stream_ && peer_address_.empty()) {
    if (auto peer = stream_->peer_address(); peer) {
      return address_text(*peer);
    }
  }
  return peer_address_;
}

void ControlLink::drop_stream() {
  stream_.reset();
  reader_ = {};
}

void ControlLink::end_stream() {
  if (stream_) {
    stream_->set_owner(nullptr);
    stream_->shutdown_then_close();
    stream_.reset();
  }
}

void ControlLink::send_plain(std::span<const std::byte> frame) {
  if (!stream_) {
    return;
  }
  if (auto written = stream_->write(frame); !written) {
    NHA_LOG_DEBUG("control stream to {}: {}", state_.owner.peer_text(), written.error().message());
  }
}

void ControlLink::send(std::vector<std::byte> frame) {
  state_.counters->control_sent.add();
  if (!state_.backup) {
    send_plain(frame);
    return;
  }
  set_numbers(frame, sequencer_.next(), sequencer_.expected());
  send_plain(frame);
  if (frame.size() > ControlBox::slot_bytes || !sequencer_.add(std::move(frame))) {
    state_.fail(fail(Errc::internal,
                     "a control message is too long, or too many wait for an "
                     "answer"),
                false);
    return;
  }
  boxes_.push_all();
  owner_.on_unconfirmed();
}

void ControlLink::send_confirm() {
  std::vector<std::byte> frame = encode_confirm();
  set_numbers(frame, 0, sequencer_.expected());
  send_plain(frame);
  boxes_.confirm_all();
}

void ControlLink::send_ask() {
  std::vector<std::byte> frame = encode_ask();
  set_numbers(frame, 0, sequencer_.expected());
  send_plain(frame);
}

/// The peer may have taken less than all of this.
void ControlLink::write_unconfirmed(Stream& stream) {
  for (uint32_t number = sequencer_.first_open(); number != sequencer_.next(); ++number) {
    set_numbers(sequencer_.frame(number), number, sequencer_.expected());
    static_cast<void>(stream.write(sequencer_.frame(number)));
  }
}

void ControlLink::write_latest_to_rejoin() {
  if (any_unconfirmed()) {
    rejoin_.write(sequencer_.frame(sequencer_.next() - 1));
  }
}

void ControlLink::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  (void)stream;
  static_cast<void>(reader_.feed(bytes));
  read_stream();
}

void ControlLink::read_stream() {
  while (state_.hears()) {
    const auto message = reader_.next();
    if (!message) {
      break;
    }
    ++stream_messages_;
    deliver(*message);
  }
  confirm_what_was_heard();
  owner_.on_heard();
  if (reader_.broken() && state_.live()) {
    owner_.on_peer_gone(fail(Errc::remote, "the peer does not speak our control protocol"));
  }
}

void ControlLink::read_inbox() {
  for (const ControlBoxes::Arrived& arrived : boxes_.take_inbox()) {
    ControlReader reader;
    static_cast<void>(reader.feed(arrived.frame));
    const auto message = reader.next();
    if (!state_.hears()) {
      return;
    }
    if (reader.broken() || (message && message->number == 0)) {
      state_.fail(fail(Errc::remote, "the peer wrote a malformed control message"));
      return;
    }
    // Its place may have been written anew meanwhile, which happens only to those taken already.
    if (message && static_cast<uint8_t>(message->number) == arrived.number) {
      deliver(*message);
    }
  }
  confirm_what_was_heard();
  owner_.on_heard();
}

void ControlLink::confirm_what_was_heard() {
  if (state_.hears() && std::exchange(confirm_due_, false)) {
    send_confirm();
  }
}

void ControlLink::deliver(const ControlReader::Message& message) {
  if (state_.lingers()) {
    hear_last(message);
    return;
  }
  if (!sequencer_.confirmed(message.confirmed)) {
    state_.fail(fail(Errc::remote, "the peer confirms control messages that it never got"));
    return;
  }
  boxes_.push_all();
  if (message.type == ControlType::confirm && state_.backup) {
    owner_.on_confirm();
    return;
  }
  if (message.type == ControlType::ask && state_.backup) {
    // Before that a confirmation would say that this side is ready.
    confirm_due_ = confirm_due_ || state_.ready();
    return;
  }
  if (message.type == ControlType::retire && state_.backup &&
      (state_.ready() || rejoin_.possible())) {
    // A better one is on its way, or here already.
    lose_stream(fail(Errc::closed, "the peer has let it go"));
    return;
  }
  if (message.number != 0) {
    confirm_due_ = true;
    switch (sequencer_.judge(message.number)) {
      case ha::ControlSequencer::Verdict::take:
        break;
      case ha::ControlSequencer::Verdict::seen:
        return;
      case ha::ControlSequencer::Verdict::gap:
        state_.fail(fail(Errc::remote, "control messages of the peer are missing"));
        return;
    }
    if (!state_.sound(sequencer_)) {
      return;
    }
  }
  state_.counters->control_received.add();
  owner_.on_control(message);
}

void ControlLink::lose_stream(const Error& why) {
  stream_.reset();
  state_.counters->streams_lost.add();
  owner_.on_stream_lost(why);
}

/// After this side's end: only what the peer has taken counts, and whether it ends too.
void ControlLink::hear_last(const ControlReader::Message& message) {
  if (!sequencer_.confirmed(message.confirmed)) {
    return;
  }
  boxes_.push_all();
  if (message.type == ControlType::retire) {
    stream_.reset();
  }
  if (message.number != 0) {
    confirm_due_ = true;
    if (sequencer_.judge(message.number) == ha::ControlSequencer::Verdict::take &&
        (message.type == ControlType::close || message.type == ControlType::failure)) {
      owner_.on_last_words();
    }
  }
}

void ControlLink::on_stream_closed(Stream& stream, const Error& error) {
  (void)stream;
  if (state_.lingers()) {
    stream_.reset();
    if (error.code == Errc::closed) {
      owner_.on_peer_left();
    } else {
      owner_.on_stream_lost(error);  // the paths may be silent: last words go over a new one
    }
    owner_.on_heard();
    return;
  }
  if (state_.live() && owner_.peer_may_leave()) {
    stream_.reset();
    owner_.on_peer_left();
    return;
  }
  if (!state_.live()) {
    return;
  }
  // Without failover too the peer is asked, as long as it may begin the connection anew.
  if (state_.ready() ? state_.backup : rejoin_.possible()) {
    FailoverLog::of(*state_.context)
        ->warn({FailoverLog::Kind::stream_lost, state_.id.index, "", state_.peer_host, {}}, [&] {
          return fmt::format("the control connection to {} is lost: {}", state_.owner.peer_text(),
                             error.message());
        });
    lose_stream(error);
    return;
  }
  owner_.on_peer_gone(error);
}

void ControlLink::take_stream(std::unique_ptr<Stream> stream, ControlReader reader) {
  retire_stream(std::move(stream_));
  state_.counters->streams_anew.add();
  adopt(std::move(stream), std::move(reader));
}

RejoinPoint ControlLink::rejoin_point() {
  RejoinPoint point;
  point.process = own_process();
  if (auto local = stream_->local_address(); local) {
    if (auto ip = IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&*local)); ip) {
      point.family = ip->family;
      point.address = ip->bytes;
    }
  }
  if (state_.context->config().enable_backup && !door_) {
    auto door = Door::of(*state_.context);
    if (const auto token = door->enter(this)) {
      door_ = std::move(door);
      rejoin_token_ = *token;
    }
  }
  if (door_) {
    point.port = door_->port();
    point.token = rejoin_token_;
  }
  return point;
}

void ControlLink::on_call(ControlType call, std::unique_ptr<Stream> stream, ControlReader reader) {
  state_.context->request_stream_turns(1000);
  if (!state_.hears()) {  // while it lingers its last words are wanted
    const Error& failure = owner_.failure();
    answer_and_close(std::move(stream),
                     state_.phase == ConnectionPhase::gone || failure.code == Errc::ok
                         ? encode(ControlType::absent, door_->process())
                         : encode(ControlType::failure, Refusal{failure.code, failure.what}));
    return;
  }
  const std::vector<std::byte> present = encode(ControlType::present, door_->process());
  auto peer = stream->peer_address();
  auto local = stream->local_address();
  if (call == ControlType::probe || !owner_.takes_streams()) {
    answer_and_close(std::move(stream), present);
    if (peer && local) {
      // An acceptor whose address has changed can tell that in no other way.  Not proven: it may be
      // that of who translates addresses.
      Rejoin::Way way = Rejoin::way_between(*peer, *local);
      way.proven = false;
      rejoin_.add({way});
    }
    // The peer has lost the stream; this side may not know.
    owner_.on_stream_lost(fail(Errc::remote, "the peer has lost it"));
    rejoin_.dial_now();  // it was reached from there
    return;
  }
  NHA_LOG_INFO("the control connection to {} was made anew", state_.owner.peer_text());
  rejoin_.stop();
  if (peer && local) {
    rejoin_.add_proven(Rejoin::way_between(*peer, *local));
  }
  take_stream(std::move(stream), std::move(reader));
  send_plain(present);
  write_unconfirmed(*stream_);
  if (state_.phase != ConnectionPhase::handshake) {
    send_confirm();
  }
  read_stream();
}

/// Where the stream of a handshake stands, the peer's host refuses others only: it would have ended
/// this one with its process.
void ControlLink::on_peer_dead(const Error& why) {
  if (!stream_ || state_.phase != ConnectionPhase::handshake) {
    owner_.on_peer_gone(why);
  }
}

void ControlLink::on_rejoined(std::unique_ptr<Stream> stream, ControlReader reader) {
  NHA_LOG_INFO("the control connection to {} was made anew", state_.owner.peer_text());
  take_stream(std::move(stream), std::move(reader));
  owner_.on_stream_back();
  read_stream();
}

}  // namespace nccl_ha
