#include "actors/connection.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>

#include <cerrno>

#include "ha/mutation.h"
#include "runtime/check.h"
#include "runtime/engine.h"
#include "runtime/log.h"

namespace nccl_ha {
Connection::Connection(fabric::Provider& provider, Engine& engine, size_t worker)
    : provider_(provider), engine_(engine), worker_index_(worker) {
  deadline_.bind([](void* self) { static_cast<Connection*>(self)->on_deadline(); }, this);
  budget_timer_.bind([](void* self) { static_cast<Connection*>(self)->on_budget_spent(); }, this);
  linger_timer_.bind([](void* self) { static_cast<Connection*>(self)->look_whether_over(); }, this);
  heartbeat_timer_.bind([](void* self) { static_cast<Connection*>(self)->on_heartbeat_timer(); },
                        this);
}

Connection::~Connection() {
  if (context_ != nullptr) {
    context_->timers().cancel(deadline_);
    context_->timers().cancel(budget_timer_);
    context_->timers().cancel(heartbeat_timer_);
    context_->timers().cancel(linger_timer_);
  }
  if (nics_) {
    nics_->unsubscribe(this);
  }
  for (Lane& lane : lanes_) {
    lane.owned.reset();
  }
  for (const OwnMemory& own : memory_) {
    static_cast<void>(provider_.remove_memory(own.registration));
  }
  if (port_) {
    port_->remove(rejoin_token_);
  }
  engine_.unassign_worker(worker_index_, 1.0);
}

void Connection::start(Context& context) {
  context_ = &context;
  const Config& config = context.config();
  budget_ = ha::RetryBudget(static_cast<uint64_t>(config.max_retries),
                            std::chrono::milliseconds(config.retry_budget_ms));
  begin();
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
    case ConnectionMessage::suspect:
      if (ready_ && backup_ && !failed_ && message.arg < lanes_.size()) {
        on_lane_failed(message.arg, fail(Errc::remote, "it was reported not to be trusted"));
      }
      return;
    case ConnectionMessage::inbox:
      read_inbox();
      return;
    case ConnectionMessage::rejected:
      if (!failed_ && lanes_[message.arg].rejected) {  // no new path was made there meanwhile
        on_lane_failed(message.arg, rejection_);
      }
      return;
  }
}

void Connection::arm_deadline(Duration in) {
  context_->timers().arm(deadline_, context_->now() + in);
}

void Connection::disarm_deadline() { context_->timers().cancel(deadline_); }

void Connection::on_deadline() {
  fail_connection(
      fail(Errc::timed_out,
           fmt::format("handshake with {} did not finish in time{}{}", peer_text(),
                       need_.empty() ? "" : "; no path came up, the last one: ", need_)));
}

void Connection::fail_connection(const Error& error, bool tell_peer) {
  if (failed_ || finished_) {
    return;
  }
  failed_ = true;
  failure_ = error;
  NHA_LOG_WARN("connection to {} failed: {}", peer_text(), error.message());
  context_->recorder().note(TraceEvent::transfer_failed, id().index,
                            static_cast<uint64_t>(error.code), 0);
  if (tell_peer || linger_.peer_ends()) {
    part(tell_peer ? encode(ControlType::failure, Refusal{error.code, error.what})
                   : std::vector<std::byte>(),
         error, false);
  } else {
    disarm_deadline();
    context_->timers().cancel(budget_timer_);
    context_->timers().cancel(heartbeat_timer_);
    end_linger(error);
  }
  if (channel() != nullptr) {
    channel()->set_failed(error);
  }
  on_failure(error);
}

void Connection::finish() {
  if (finished_) {
    return;
  }
  finished_ = true;
  rejoin_.stop();
  disarm_deadline();
  context_->timers().cancel(budget_timer_);
  context_->timers().cancel(heartbeat_timer_);
  context_->timers().cancel(linger_timer_);
  end_stream();
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
  while (hears()) {
    const auto message = reader_.next();
    if (!message) {
      break;
    }
    ++stream_messages_;
    deliver(*message);
  }
  if (hears() && std::exchange(confirm_due_, false)) {
    send_confirm();
  }
  look_whether_over();
  if (reader_.broken() && !failed_ && !finished_) {
    on_peer_gone(fail(Errc::remote, "the peer does not speak our control protocol"));
  }
}

void Connection::on_stream_closed(Stream& stream, const Error& error) {
  (void)stream;
  if (linger_.under_way()) {
    stream_.reset();
    if (error.code == Errc::closed) {
      linger_.on_peer_left();
    } else {
      on_stream_lost(error);  // the paths may be silent, and the last words go over a new one
    }
    look_whether_over();
    return;
  }
  if (failed_ || finished_) {
    return;
  }
  const bool dead = error.sys == ECONNRESET && ha::mutated(ha::Mutation::reset_is_death);
  if (backup_ && (ready_ || rejoin_.possible()) && !dead) {
    NHA_LOG_WARN("the control connection to {} is lost: {}", peer_text(), error.message());
    stream_.reset();
    on_stream_lost(error);
    return;
  }
  on_peer_gone(error);
}

void Connection::retire_stream(std::unique_ptr<Stream> stream) {
  if (stream) {
    stream->set_owner(nullptr);
    static_cast<void>(stream->write(encode_retire()));
    stream->shutdown_then_close();
  }
}

void Connection::take_stream(std::unique_ptr<Stream> stream, ControlReader reader) {
  retire_stream(std::move(stream_));
  stream_ = std::move(stream);
  stream_->set_owner(this);
  if (!ha::mutated(ha::Mutation::reader_kept)) {
    reader_ = std::move(reader);
  }
  context_->request_stream_turns(1000);
}

RejoinPoint Connection::rejoin_point() {
  RejoinPoint point;
  point.process = own_process();
  if (auto local = stream_->local_address(); local) {
    if (auto ip = fabric::IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&*local));
        ip) {
      point.family = ip->family;
      point.address = ip->bytes;
    }
  }
  if (context_->config().enable_backup && !port_ &&
      (port_ = ControlPort::of(*context_)) != nullptr) {
    rejoin_token_ = port_->enter(this);
  }
  if (port_) {
    point.port = port_->port();
    point.token = rejoin_token_;
  }
  return point;
}

void Connection::on_call(ControlType call, std::unique_ptr<Stream> stream, ControlReader reader) {
  context_->request_stream_turns(1000);
  const bool lingering = linger_.under_way() && !finished_;  // its last words are wanted
  if (!lingering && (finished_ || failed_)) {
    answer_and_close(std::move(stream),
                     finished_ || failure_.code == Errc::ok
                         ? encode(ControlType::absent, port_->process())
                         : encode(ControlType::failure, Refusal{failure_.code, failure_.what}));
    return;
  }
  const std::vector<std::byte> present = encode(ControlType::present, port_->process());
  if (call == ControlType::probe || !takes_streams()) {
    answer_and_close(std::move(stream), present);
    // The peer has lost the stream; this side may not know.
    on_stream_lost(fail(Errc::remote, "the peer has lost it"));
    return;
  }
  NHA_LOG_INFO("the control connection to {} was made anew", peer_text());
  rejoin_.stop();
  auto peer = stream->peer_address();
  auto local = stream->local_address();
  if (peer && local) {
    rejoin_.add_proven(Rejoin::way_between(*peer, *local));
  }
  take_stream(std::move(stream), std::move(reader));
  if (!ha::mutated(ha::Mutation::present_not_said)) {
    write_stream(present);
  }
  if (!ha::mutated(ha::Mutation::rejoined_without_backlog)) {
    write_unconfirmed(*stream_);
  }
  if (ready_) {
    send_confirm();
  }
  read_stream();
}

uint64_t Connection::life() const {
  uint64_t all = 0;
  for (const Lane& lane : lanes_) {
    all += lane.health.life();
  }
  return all;
}

void Connection::on_rejoined(std::unique_ptr<Stream> stream, ControlReader reader) {
  NHA_LOG_INFO("the control connection to {} was made anew", peer_text());
  take_stream(std::move(stream), std::move(reader));
  on_stream_back();
  read_stream();
}

void Connection::fail_as_told(const std::optional<Refusal>& refusal) {
  linger_.on_last_words();
  Error error = from_peer(refusal ? refusal->text : "(unreadable)");
  // What it refuses in the handshake may be this side's to mend; later the fault is its own.
  error.code = refusal && !ready_ ? refusal->code : error.code;
  fail_connection(error, false);
}

void Connection::on_peer_gone(const Error& error) { fail_connection(error, false); }

}  // namespace nccl_ha
