#include "relay/session_stream.h"

#include <utility>

#include "runtime/fabric/byte_order.h"

namespace nccl_ha::relay {
namespace {

Result<SessionMessage> without_tag(std::span<const std::byte> sealed) {
  const bool has_one = sealed.size() >= session_header_bytes + tag_bytes;
  std::vector<std::byte> plain(sealed.begin(), sealed.end() - (has_one ? tag_bytes : 0));
  set_session_message_length(plain, plain.size());
  return decode_session_message(plain);
}

bool says_hello(const Result<SessionMessage>& message) {
  return message && std::holds_alternative<SessionHello>(*message);
}

}  // namespace

SessionStream::SessionStream(Context& context, Owner* owner, SessionKeys keys, bool encrypts)
    : context_(context), owner_(owner), keys_(std::move(keys)), encrypts_(encrypts) {
  timer_.bind([](void* self) { static_cast<SessionStream*>(self)->on_timer(); }, this);
}

SessionStream::~SessionStream() {
  context_.timers().cancel(timer_);
  *alive_ = false;
}

Result<void> SessionStream::dial(const NextHop& next, const Ticket& peer) {
  const sockaddr* from = next.local.length != 0 ? next.local.get() : nullptr;
  auto stream = context_.streams().connect_tcp(next.relay.get(), from, this);
  if (!stream) {
    return stream.error();
  }
  stream_ = std::move(*stream);
  dials_ = true;
  peer_ = peer;
  peer_key_ = next.key;
  // What is dialled over a cable that is cut need not fail.
  silence_.begin(context_.moment(), silence_max);
  context_.timers().arm(timer_, context_.now() + silence_max);
  return {};
}

Result<void> SessionStream::adopt(int fd) {
  auto stream = context_.streams().adopt_fd(fd, this);
  if (!stream) {
    return stream.error();
  }
  stream_ = std::move(*stream);
  begin();
  make_seal(false);
  return {};
}

void SessionStream::make_seal(bool dials) {
  if (!keys_ || (dials && peer_key_ == 0 && keys_.open())) {
    return;
  }
  SessionHello::Nonce nonce;
  context_.secrets().fill(nonce);
  seal_.emplace(keys_.now(), dials, nonce, peer_, encrypts_, peer_key_);
}

void SessionStream::begin() {
  connected_ = true;
  silence_.begin(context_.moment(), silence_max);
  context_.timers().arm(timer_, context_.now() + ping_apart);
}

void SessionStream::on_stream_open(Stream& stream) {
  (void)stream;
  begin();
  make_seal(true);
  if (!seal_) {
    owner_->on_session_open(*this);
  } else if (auto hello = seal_->hello()) {
    static_cast<void>(stream_->write(*hello));
  } else {
    reject(hello.error());
  }
}

void SessionStream::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  (void)stream;
  if (lost_) {
    return;
  }
  silence_.begin(context_.moment(), silence_max);
  received_.insert(received_.end(), bytes.begin(), bytes.end());
  const auto alive = alive_;
  while (*alive && !lost_ && received_.size() >= session_header_bytes) {
    const auto length = session_message_length(received_);
    if (!length) {
      misunderstood_ = true;
      refuse(length.error());
      return;
    }
    if (received_.size() < *length) {
      return;
    }
    const auto end = received_.begin() + static_cast<ptrdiff_t>(*length);
    const std::vector<std::byte> message(received_.begin(), end);
    received_.erase(received_.begin(), end);
    take(message);
  }
}

/// Of a neighbour without a key, where those are served.
bool SessionStream::is_unsealed(std::span<const std::byte> bytes) const {
  return !dials_ && keys_.open() && !says_hello(without_tag(bytes)) &&
         decode_session_message(bytes);
}

void SessionStream::take(std::span<const std::byte> bytes) {
  if (seal_ && !seal_->open() && is_unsealed(bytes)) {
    seal_.reset();
  }
  if (seal_ && !seal_->open()) {
    if (auto shaken = shake_hands(bytes); !shaken) {
      reject(shaken.error());
    }
    return;
  }
  std::vector<std::byte> unsealed;
  if (seal_) {
    auto opened = seal_->unseal(bytes);
    if (!opened) {
      reject(opened.error());
      return;
    }
    unsealed = std::move(*opened);
    bytes = unsealed;
  }
  auto message = decode_session_message(bytes);
  if (says_hello(message) || (!seal_ && says_hello(without_tag(bytes)))) {
    reject(fail(
        Errc::remote,
        "this host has no cluster key (HA_NCCL_MESH_KEY_FILE), and no ticket of a relay node"));
  } else if (!message) {
    lose(message.error());
  } else if (!std::holds_alternative<SessionPing>(*message)) {
    owner_->on_session_message(*this, std::move(*message));
  }
}

Result<void> SessionStream::shake_hands(std::span<const std::byte> bytes) {
  // Both seal already their first message: what it says is believed when the seal is good.
  if (const auto message = without_tag(bytes); says_hello(message)) {
    return shake_hands(std::get<SessionHello>(*message), bytes);
  }
  const auto unsealed = decode_session_message(bytes);
  if (dials_ && keys_.open() && unsealed && std::holds_alternative<SessionPing>(*unsealed)) {
    seal_.reset();
    owner_->on_session_open(*this);
    return {};
  }
  if (unsealed && std::holds_alternative<SetupRefusal>(*unsealed)) {
    return fail(Errc::remote, std::get<SetupRefusal>(*unsealed).text);
  }
  return fail(
      Errc::remote,
      "a neighbour that does not show the cluster's key (HA_NCCL_MESH_KEY_FILE), or a ticket "
      "of the relay node of its host");
}

Result<void> SessionStream::shake_hands(const SessionHello& hello,
                                        std::span<const std::byte> bytes) {
  if (!dials_ && keys_.open() && !seal_->knows(hello)) {
    // A host of another job, whose key is none for this one: as if it had none, which it is told.
    seal_.reset();
    return stream_->write(encode(SessionPing{}));
  }
  if (auto good = seal_->on_hello(hello, bytes); !good) {
    return good;
  }
  if (!dials_) {
    const auto answer = seal_->hello();
    return answer ? stream_->write(*answer) : answer.error();
  }
  if (auto sealed = seal_->unseal(bytes); !sealed) {
    return sealed.error();
  }
  owner_->on_session_open(*this);
  return {};
}

void SessionStream::reject(const Error& error) {
  unauthenticated_ = true;
  refuse(error);
}

/// Another version finds ours in the header, and says so.
void SessionStream::refuse(const Error& error) {
  if (stream_ && !std::exchange(closed_, true)) {
    static_cast<void>(stream_->write(
        encode(SetupRefusal{fabric::CompletionStatus::retry_exceeded, 0, error.message()})));
    stream_->shutdown_then_close();
  }
  lose(error);
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
  const Duration left = silence_.left(context_.moment(), timer_.deadline());
  if (left == Duration(0)) {
    lose(fail(Errc::timed_out, "the neighbour on the route is silent"));
    return;
  }
  if (!connected_) {
    context_.timers().arm(timer_, context_.now() + left);
    return;
  }
  context_.timers().arm(timer_, context_.now() + ping_apart);
  send(SessionPing{});
}

void SessionStream::send(const SessionMessage& message) {
  if (stream_ && !lost_ && (!seal_ || seal_->open())) {
    // A stream that takes no more is one whose neighbour reads nothing: its silence ends it.
    const auto bytes = encode(message);
    static_cast<void>(stream_->write(seal_ ? seal_->seal(bytes) : bytes));
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

Result<sockaddr_storage> SessionStream::peer_address() {
  if (!stream_) {
    return fail(Errc::invalid_usage, "a session's stream without a neighbour");
  }
  return stream_->peer_address();
}

}  // namespace nccl_ha::relay
