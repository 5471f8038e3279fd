#include "actors/connection.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>

#include "runtime/check.h"
#include "runtime/engine.h"
#include "runtime/log.h"

namespace nccl_ha {

Connection::Connection(fabric::Provider& provider, Engine& engine, size_t worker)
    : provider_(provider), engine_(engine), worker_index_(worker) {
  deadline_.bind([](void* self) { static_cast<Connection*>(self)->on_deadline(); }, this);
}

Connection::~Connection() {
  if (context_ != nullptr) {
    context_->timers().cancel(deadline_);
  }
  for (fabric::OwnedPath& path : paths_) {
    path.reset();
  }
  for (const fabric::Registration& registration : memory_) {
    static_cast<void>(provider_.remove_memory(registration));
  }
  engine_.release(worker_index_, 1.0);
}

void Connection::start(Context& context) {
  context_ = &context;
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
  }
}

Result<void> Connection::make_paths(const sockaddr* local, size_t count, bool active) {
  fabric::PathOptions options;
  options.domain = domain_;
  options.writes_max = static_cast<uint32_t>(sends_max + cts_slots);
  options.receives_max = receives_;
  options.active = active;
  options.flushes = flushes_;
  options.traffic_class = traffic_class_;
  options.service_level = service_level_;
  for (size_t i = 0; i < count; ++i) {
    auto path = provider_.create_path(*context_, attachment_, local, options, this);
    if (!path) {
      return path.error();
    }
    paths_.push_back(std::move(*path));
    for (uint32_t credit = 0; credit < receives_; ++credit) {
      if (!post_credit(*paths_.back().path)) {
        return fail(Errc::internal, "cannot post the first receives of a path");
      }
    }
  }
  return {};
}

Result<void> Connection::connect_paths(const std::vector<PathAddress>& peers) {
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (auto connected = paths_[i].path->connect(peers[i].view()); !connected) {
      return connected;
    }
  }
  return {};
}

std::vector<PathAddress> Connection::path_addresses() const {
  std::vector<PathAddress> addresses;
  for (const fabric::OwnedPath& path : paths_) {
    addresses.push_back(*PathAddress::from(path.path->local_address()));
  }
  return addresses;
}

Result<fabric::Registration> Connection::register_memory(void* base, size_t bytes) {
  auto registration = provider_.add_memory(attachment_, domain_, base, bytes, false);
  if (registration) {
    memory_.push_back(*registration);
  }
  return registration;
}

bool Connection::post_credit(fabric::Path& path) {
  return path.post_receive(fabric::ReceivePost{}) == Errc::ok;
}

void Connection::fail_paths(const Error& why) {
  for (fabric::OwnedPath& path : paths_) {
    path.path->fail(why);
  }
}

void Connection::send_control(const std::vector<std::byte>& bytes) {
  if (!stream_) {
    return;
  }
  if (auto written = stream_->write(bytes); !written) {
    NHA_LOG_DEBUG("control stream to {}: {}", peer_text(), written.error().message());
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
  std::string address = wanted_peer();
  if (stream_) {
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
  while (!failed_ && !finished_) {
    const auto message = reader_.next();
    if (!message) {
      break;
    }
    on_control(*message);
  }
  if (reader_.broken() && !failed_ && !finished_) {
    on_peer_gone(fail(Errc::remote, "the peer does not speak our control protocol"));
  }
}

void Connection::on_stream_closed(Stream& stream, const Error& error) {
  (void)stream;
  if (!failed_ && !finished_) {
    on_peer_gone(error);
  }
}

void Connection::on_peer_gone(const Error& error) { fail_connection(error, false); }

void Connection::on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) {
  if (failed_ || finished_) {
    return;
  }
  if (state == fabric::PathState::ready) {
    NHA_LOG_DEBUG("path ready: {}", path.describe());
    if (++paths_ready_ == paths_.size()) {
      on_paths_ready();
    }
  } else {
    fail_connection(error);
  }
}

}  // namespace nccl_ha
