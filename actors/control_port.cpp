#include "actors/control_port.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/host.h"
#include "runtime/log.h"

namespace nccl_ha {
namespace {

constexpr size_t strangers_max = 256;
constexpr Duration patience = std::chrono::seconds(5);

}  // namespace

std::shared_ptr<ControlPort> ControlPort::of(Context& context) {
  auto& slot = context.shared[static_cast<size_t>(Context::Shared::control_port)];
  if (auto known = std::static_pointer_cast<ControlPort>(slot.lock())) {
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
  slot = made;
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

uint64_t ControlPort::enter(Member* member) {
  uint64_t token = 0;
  do {
    token = context_.random().next();
  } while (token == 0 || !members_.emplace(token, member).second);
  return token;
}

void ControlPort::on_accept(int fd) {
  auto stream = context_.streams().adopt_fd(fd, this);
  if (!stream || strangers_.size() >= strangers_max) {
    NHA_LOG_WARN_LIMITED(
        "control port: cannot take a connection: {}",
        stream ? std::string("too many unfinished ones") : stream.error().message());
    return;
  }
  strangers_.push_back({std::move(*stream), {}, context_.now()});
  context_.request_stream_turns(1000);
  if (strangers_.size() == 1) {
    context_.timers().arm(timer_, context_.now() + patience);
  }
}

void ControlPort::on_acceptor_error(const Error& error) {
  NHA_LOG_WARN_LIMITED("control port: accepting connections fails: {}", error.message());
}

std::list<ControlPort::Stranger>::iterator ControlPort::find(const Stream& stream) {
  return std::find_if(strangers_.begin(), strangers_.end(),
                      [&](const Stranger& one) { return one.stream.get() == &stream; });
}

void ControlPort::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  const auto stranger = find(stream);
  if (stranger == strangers_.end()) {
    return;
  }
  static_cast<void>(stranger->reader.feed(bytes));
  const auto message = stranger->reader.next();
  if (!message && !stranger->reader.broken()) {
    return;
  }
  const ControlType type = message ? message->type : ControlType::hello;
  const auto call = type == ControlType::rejoin || type == ControlType::probe
                        ? decode_call(message->payload)
                        : std::nullopt;
  Stranger caller = std::move(*stranger);
  strangers_.erase(stranger);
  if (!call) {
    NHA_LOG_WARN_LIMITED("control port: turned a stranger away");
    return;
  }
  const RejoinCall whom = call.value_or(RejoinCall{});
  const auto member = members_.find(whom.token);
  if (member == members_.end() || whom.process != process_) {
    NHA_LOG_DEBUG("control port: asked for a connection that is gone");
    answer_and_close(std::move(caller.stream), encode(ControlType::absent, process_));
    return;
  }
  member->second->on_call(type, std::move(caller.stream), std::move(caller.reader));
}

void ControlPort::on_stream_closed(Stream& stream, const Error& error) {
  (void)error;
  if (const auto stranger = find(stream); stranger != strangers_.end()) {
    strangers_.erase(stranger);
  }
}

void ControlPort::turn_out_the_late() {
  std::erase_if(strangers_,
                [&](const Stranger& one) { return context_.now() - one.since >= patience; });
  if (!strangers_.empty()) {
    context_.timers().arm(timer_, context_.now() + patience);
  }
}

}  // namespace nccl_ha
