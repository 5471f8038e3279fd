#include "relay/session_acceptor.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"

namespace nccl_ha::relay {

SessionAcceptor::SessionAcceptor(Context& context, SessionKeys keys, Handler& handler)
    : context_(context), keys_(std::move(keys)), handler_(handler) {
  timer_.bind([](void* self) { static_cast<SessionAcceptor*>(self)->on_timer(); }, this);
}

SessionAcceptor::~SessionAcceptor() { context_.timers().cancel(timer_); }

Result<std::unique_ptr<SessionAcceptor>> SessionAcceptor::listen(Context& context,
                                                                 const std::string& ports,
                                                                 SessionKeys keys,
                                                                 Handler& handler) {
  std::unique_ptr<SessionAcceptor> made(new SessionAcceptor(context, std::move(keys), handler));
  auto listening = context.streams().open_listener(ports);
  if (!listening) {
    return listening.error();
  }
  made->port_ = listening->port;
  auto acceptor = context.streams().adopt_listener(listening->fd, made.get());
  if (!acceptor) {
    return acceptor.error();
  }
  made->acceptor_ = std::move(*acceptor);
  return made;
}

void SessionAcceptor::on_accept(int fd) {
  std::unique_ptr<SessionStream> stream(
      new SessionStream(context_, this, keys_, context_.config().encrypt));
  if (auto adopted = stream->adopt(fd); !adopted) {
    NHA_LOG_WARN("a neighbour's stream is lost: {}", adopted.error().message());
    return;
  }
  const auto origin = Origin::of(stream->peer_address());
  if (pending_.size() >= pending_max) {
    ++refused_;
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(who_gives_way(pending_, origin)));
  }
  pending_.push_back({origin, std::move(stream), {}});
  pending_.back().limit.begin(context_.moment(), patience);
  context_.request_stream_turns(4);
  if (!timer_.armed()) {
    context_.timers().arm(timer_, context_.now() + patience);
  }
}

void SessionAcceptor::on_acceptor_error(const Error& error) {
  NHA_LOG_WARN_LIMITED("a neighbour that asks for a relayed path is not heard: {}",
                       error.message());
}

std::unique_ptr<SessionStream> SessionAcceptor::take(SessionStream& stream) {
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [&](const Pending& one) { return one.stream.get() == &stream; });
  auto taken = std::move(found->stream);
  pending_.erase(found);
  return taken;
}

void SessionAcceptor::on_session_message(SessionStream& stream, SessionMessage message) {
  auto taken = take(stream);
  if (auto* request = std::get_if<SetupRequest>(&message)) {
    handler_.on_request(std::move(taken), std::move(*request));
  } else {
    ++refused_;
  }
}

void SessionAcceptor::on_session_lost(SessionStream& stream, const Error& error) {
  if (stream.unauthenticated()) {
    handler_.on_unauthenticated();
  }
  if (stream.unauthenticated() || stream.misunderstood()) {
    NHA_LOG_WARN_LIMITED("a relayed path is refused: {}", error.message());
  }
  ++refused_;
  static_cast<void>(take(stream));
}

void SessionAcceptor::on_timer() {
  const Moment now = context_.moment();
  const size_t before = pending_.size();
  std::erase_if(pending_, [&](const Pending& one) { return one.limit.left(now) == Duration(0); });
  refused_ += before - pending_.size();
  if (!pending_.empty()) {
    context_.timers().arm(timer_, now.now + pending_.front().limit.left(now));
  }
}

}  // namespace nccl_ha::relay
