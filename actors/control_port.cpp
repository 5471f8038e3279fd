#include "actors/control_port.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "actors/route.h"
#include "runtime/base/host.h"
#include "runtime/base/log.h"

namespace nccl_ha {
namespace {

constexpr size_t unauthenticated_max = 256;
constexpr Duration answer_limit = std::chrono::seconds(5);

std::string text_of_peer(Stream& stream) {
  const auto address = stream.peer_address();
  return address ? address_text(*address) : "an unknown address";
}

}  // namespace

std::shared_ptr<ControlPort> ControlPort::of(Context& context) {
  if (auto known = context.shared().find<ControlPort>()) {
    return known;
  }
  auto made = std::make_shared<ControlPort>(context);
  auto acceptor =
      context.streams().listen_tcp(context.config().listen_ports, &made->port_, made.get());
  if (!acceptor) {
    NHA_LOG_WARN_LIMITED("control connections that break cannot be made anew: {}",
                         acceptor.error().message());
    return nullptr;
  }
  made->acceptor_ = std::move(*acceptor);
  context.shared().put(made);
  return made;
}

ProcessId own_process() { return {static_cast<uint32_t>(getpid()), process_start_ticks()}; }

void answer_and_close(std::unique_ptr<Stream> stream, std::span<const std::byte> frame) {
  stream->set_owner(nullptr);
  static_cast<void>(stream->write(frame));
  stream->shutdown_then_close();
}

ControlPort::ControlPort(Context& context) : context_(context), process_(own_process()) {
  timer_.bind([](void* self) { static_cast<ControlPort*>(self)->turn_out_the_late(); }, this);
}

ControlPort::~ControlPort() { context_.timers().cancel(timer_); }

Secret ControlPort::enter(Member* member) {
  Secret token;
  do {
    token = context_.secrets().draw();
  } while (!members_.emplace(token, member).second);
  return token;
}

void ControlPort::on_accept(int fd) {
  auto stream = context_.peer_streams().adopt_fd(fd, this);
  if (!stream) {
    NHA_LOG_WARN_LIMITED("control port: cannot take a connection: {}", stream.error().message());
    return;
  }
  const Origin origin = Origin::of((*stream)->peer_address());
  if (unauthenticated_.size() >= unauthenticated_max) {
    const auto out =
        unauthenticated_.begin() + static_cast<ptrdiff_t>(who_gives_way(unauthenticated_, origin));
    NHA_LOG_WARN_LIMITED("control port: {} unfinished connections, turning out the one from {}",
                         unauthenticated_.size(), text_of_peer(*out->stream));
    unauthenticated_.erase(out);
  }
  unauthenticated_.push_back({origin, std::move(*stream), {}, context_.now()});
  context_.request_stream_turns(1000);
  if (unauthenticated_.size() == 1) {
    context_.timers().arm(timer_, context_.now() + answer_limit);
  }
}

void ControlPort::on_acceptor_error(const Error& error) {
  NHA_LOG_WARN_LIMITED("control port: accepting connections fails: {}", error.message());
}

std::vector<ControlPort::Unauthenticated>::iterator ControlPort::find(const Stream& stream) {
  return std::find_if(unauthenticated_.begin(), unauthenticated_.end(),
                      [&](const Unauthenticated& one) { return one.stream.get() == &stream; });
}

void ControlPort::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  const auto peer = find(stream);
  if (peer == unauthenticated_.end()) {
    return;
  }
  static_cast<void>(peer->reader.feed(bytes));
  const auto message = peer->reader.next();
  if (!message && !peer->reader.broken()) {
    return;
  }
  const ControlType type = message ? message->type : ControlType::hello;
  const auto call = type == ControlType::rejoin || type == ControlType::probe
                        ? decode_call(message->payload)
                        : std::nullopt;
  Unauthenticated caller = std::move(*peer);
  unauthenticated_.erase(peer);
  if (!call) {
    NHA_LOG_WARN_LIMITED("control port: rejected an unauthenticated peer at {}",
                         text_of_peer(*caller.stream));
    return;
  }
  const RejoinCall whom = call.value_or(RejoinCall{});
  const auto member = members_.find(whom.token);
  if (member == members_.end() || whom.process != process_) {
    NHA_LOG_DEBUG("control port: {} asks for a connection that is gone",
                  text_of_peer(*caller.stream));
    // Who does not know this process is not told of it.
    answer_and_close(
        std::move(caller.stream),
        encode(ControlType::absent, whom.process == process_ ? process_ : ProcessId{}));
    return;
  }
  member->second->on_call(type, std::move(caller.stream), std::move(caller.reader));
}

void ControlPort::on_stream_closed(Stream& stream, const Error& error) {
  (void)error;
  if (const auto peer = find(stream); peer != unauthenticated_.end()) {
    unauthenticated_.erase(peer);
  }
}

void ControlPort::turn_out_the_late() {
  std::erase_if(unauthenticated_, [&](const Unauthenticated& one) {
    return context_.now() - one.since >= answer_limit;
  });
  if (!unauthenticated_.empty()) {
    context_.timers().arm(timer_, context_.now() + answer_limit);
  }
}

}  // namespace nccl_ha
