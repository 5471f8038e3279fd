#include "relay/session_stream.h"

#include <utility>

namespace nccl_ha::relay {

SessionStream::SessionStream(Context& context, Owner* owner) : context_(context), owner_(owner) {
  timer_.bind([](void* self) { static_cast<SessionStream*>(self)->on_timer(); }, this);
}

SessionStream::~SessionStream() {
  context_.timers().cancel(timer_);
  *alive_ = false;
}

Result<void> SessionStream::dial(const NextHop& next) {
  const sockaddr* from = next.local.length != 0 ? next.local.get() : nullptr;
  auto stream = context_.streams().connect_tcp(next.relay.get(), from, this);
  if (!stream) {
    return stream.error();
  }
  stream_ = std::move(*stream);
  return {};
}

Result<void> SessionStream::adopt(int fd) {
  auto stream = context_.streams().adopt_fd(fd, this);
  if (!stream) {
    return stream.error();
  }
  stream_ = std::move(*stream);
  begin();
  return {};
}

void SessionStream::begin() {
  heard_ = context_.now();
  context_.timers().arm(timer_, heard_ + ping_apart);
}

void SessionStream::on_stream_open(Stream& stream) {
  (void)stream;
  begin();
  owner_->on_session_open(*this);
}

void SessionStream::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  (void)stream;
  if (lost_) {
    return;
  }
  heard_ = context_.now();
  received_.insert(received_.end(), bytes.begin(), bytes.end());
  const auto alive = alive_;
  while (*alive && !lost_ && received_.size() >= session_header_bytes) {
    const auto length = session_message_length(received_);
    if (!length) {
      lose(length.error());
      return;
    }
    if (received_.size() < *length) {
      return;
    }
    auto message = decode_session_message(std::span(received_).first(*length));
    received_.erase(received_.begin(), received_.begin() + static_cast<ptrdiff_t>(*length));
    if (!message) {
      lose(message.error());
      return;
    }
    if (!std::holds_alternative<SessionPing>(*message)) {
      owner_->on_session_message(*this, std::move(*message));
    }
  }
}

void SessionStream::on_stream_closed(Stream& stream, const Error& error) {
  (void)stream;
  lose(error.code == Errc::closed ? fail(Errc::remote, "the neighbour ended the session") : error);
}

void SessionStream::lose(const Error& error) {
  if (!lost_) {
    lost_ = true;
    context_.timers().cancel(timer_);
    owner_->on_session_lost(*this, error);
  }
}

void SessionStream::on_timer() {
  if (context_.now() - heard_ >= silence_max) {
    lose(fail(Errc::timed_out, "the neighbour on the route is silent"));
    return;
  }
  context_.timers().arm(timer_, context_.now() + ping_apart);
  send(SessionPing{});
}

void SessionStream::send(const SessionMessage& message) {
  if (stream_ && !lost_) {
    // A stream that takes no more is one whose neighbour reads nothing: its silence ends it.
    static_cast<void>(stream_->write(encode(message)));
  }
}

void SessionStream::close() {
  context_.timers().cancel(timer_);
  if (stream_ && !std::exchange(closed_, true)) {
    stream_->shutdown_then_close();
  }
  lost_ = true;
}

Result<sockaddr_storage> SessionStream::local_address() {
  if (!stream_) {
    return fail(Errc::invalid_usage, "a session's stream without a neighbour");
  }
  return stream_->local_address();
}

}  // namespace nccl_ha::relay
