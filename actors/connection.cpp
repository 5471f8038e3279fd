#include "actors/connection.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>

#include <cerrno>

#include "runtime/check.h"
#include "runtime/engine.h"
#include "runtime/log.h"

namespace nccl_ha {
namespace {

/// The way to the peer is gone, but nobody has said that the peer is.
bool network_fault(const Error& error) {
  return error.sys == ETIMEDOUT || error.sys == EHOSTUNREACH || error.sys == ENETUNREACH ||
         error.sys == ENETDOWN || error.sys == EHOSTDOWN;
}

}  // namespace

Connection::Connection(fabric::Provider& provider, Engine& engine, size_t worker)
    : provider_(provider), engine_(engine), worker_index_(worker) {
  deadline_.bind([](void* self) { static_cast<Connection*>(self)->on_deadline(); }, this);
  budget_timer_.bind([](void* self) { static_cast<Connection*>(self)->on_budget_spent(); }, this);
  pulse_.bind([](void* self) { static_cast<Connection*>(self)->on_pulse(); }, this);
}

Connection::~Connection() {
  if (context_ != nullptr) {
    context_->timers().cancel(deadline_);
    context_->timers().cancel(budget_timer_);
    context_->timers().cancel(pulse_);
  }
  if (nics_) {
    nics_->leave(this);
  }
  for (Lane& lane : lanes_) {
    lane.owned.reset();
  }
  for (const OwnMemory& own : memory_) {
    static_cast<void>(provider_.remove_memory(own.registration));
  }
  engine_.release(worker_index_, 1.0);
}

void Connection::start(Context& context) {
  context_ = &context;
  const Config& config = context.config();
  budget_ = ha::RetryBudget(static_cast<uint64_t>(config.max_retries),
                            std::chrono::milliseconds(config.retry_budget_ms));
  begin();
}

void Connection::stop() {
  if (!finished_) {
    finished_ = true;
    if (channel() != nullptr) {
      channel()->set_failed(fail(Errc::closed, "the network engine was shut down"));
    }
    if (stream_) {
      stream_->set_owner(nullptr);
      stream_->shutdown_then_close();
      stream_.reset();
    }
  }
}

void Connection::on(const Message& message) {
  if (finished_) {
    return;
  }
  switch (static_cast<ConnectionMessage>(message.kind)) {
    case ConnectionMessage::doorbell:
      // Taken first: a request published from here on rings again.
      if (channel() != nullptr && channel()->take_doorbell() && ready_ && !failed_) {
        on_doorbell();
      }
      return;
    case ConnectionMessage::close:
      on_close();
      return;
    case ConnectionMessage::oversize:
      fail_connection(fail(Errc::invalid_usage,
                           "a send was larger than the receive that the peer posted for it"));
      return;
    case ConnectionMessage::doubt:
      if (ready_ && backup_ && !failed_ && message.arg < lanes_.size()) {
        on_lane_failed(message.arg, fail(Errc::remote, "it was reported not to be trusted"));
      }
      return;
    case ConnectionMessage::inbox:
      read_inbox();
      return;
  }
}

void Connection::arm_deadline(Duration in) {
  context_->timers().arm(deadline_, context_->now() + in);
}

void Connection::disarm_deadline() { context_->timers().cancel(deadline_); }

void Connection::on_deadline() {
  fail_connection(
      fail(Errc::timed_out, fmt::format("handshake with {} did not finish in time", peer_text())));
}

void Connection::fail_connection(const Error& error, bool tell_peer) {
  if (failed_ || finished_) {
    return;
  }
  failed_ = true;
  disarm_deadline();
  context_->timers().cancel(budget_timer_);
  context_->timers().cancel(pulse_);
  NHA_LOG_WARN("connection to {} failed: {}", peer_text(), error.message());
  context_->recorder().note(TraceEvent::transfer_failed, id().index,
                            static_cast<uint64_t>(error.code), 0);
  fail_paths(error);
  if (channel() != nullptr) {
    channel()->set_failed(error);
  }
  on_failure(error);
  if (stream_) {
    if (tell_peer) {
      send_control(encode(ControlType::failure, Refusal{error.code, error.what}));
    }
    stream_->set_owner(nullptr);
    stream_->shutdown_then_close();
    stream_.reset();
  }
}

void Connection::finish() {
  if (finished_) {
    return;
  }
  finished_ = true;
  disarm_deadline();
  context_->timers().cancel(budget_timer_);
  context_->timers().cancel(pulse_);
  if (stream_) {
    stream_->set_owner(nullptr);
    stream_->shutdown_then_close();
    stream_.reset();
  }
  fail_paths(fail(Errc::closed, "connection closed"));
  context_->recorder().note(TraceEvent::actor_closed, id().index, 0, 0);
  context_->remove_actor(id());
}

std::string address_text(const sockaddr_storage& address) {
  const auto ip = fabric::IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&address));
  return ip ? ip->text() : "?";
}

std::string Connection::peer_text() const {
  std::string address = peer_address_.empty() ? wanted_peer() : peer_address_;
  if (stream_ && peer_address_.empty()) {
    if (auto peer = stream_->peer_address(); peer) {
      address = address_text(*peer);
    }
  }
  return peer_host_.empty() ? address
                            : fmt::format("{} ({}, pid {})", address, peer_host_, peer_process_);
}

void Connection::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  (void)stream;
  static_cast<void>(reader_.feed(bytes));
  read_stream();
}

void Connection::read_stream() {
  while (!failed_ && !finished_) {
    const auto message = reader_.next();
    if (!message) {
      break;
    }
    deliver(*message);
  }
  if (std::exchange(confirm_due_, false) && !failed_ && !finished_) {
    send_confirm();
  }
  if (reader_.broken() && !failed_ && !finished_) {
    on_peer_gone(fail(Errc::remote, "the peer does not speak our control protocol"));
  }
}

void Connection::on_stream_closed(Stream& stream, const Error& error) {
  (void)stream;
  if (failed_ || finished_) {
    return;
  }
  if (ready_ && backup_ && network_fault(error)) {
    NHA_LOG_WARN("the control connection to {} is lost: {}", peer_text(), error.message());
    stream_.reset();
    on_stream_lost();
    return;
  }
  on_peer_gone(error);
}

void Connection::leave(std::unique_ptr<Stream> stream) {
  if (stream) {
    stream->set_owner(nullptr);
    static_cast<void>(stream->write(encode_leave()));
    stream->shutdown_then_close();
  }
}

void Connection::take_stream(std::unique_ptr<Stream> stream, ControlReader reader) {
  leave(std::move(stream_));
  stream_ = std::move(stream);
  stream_->set_owner(this);
  reader_ = std::move(reader);
  context_->request_stream_turns(1000);
}

void Connection::on_peer_gone(const Error& error) { fail_connection(error, false); }

}  // namespace nccl_ha
