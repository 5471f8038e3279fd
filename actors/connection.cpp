#include "actors/connection.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>

#include "ha/error_class.h"
#include "runtime/check.h"
#include "runtime/engine.h"
#include "runtime/log.h"

namespace nccl_ha {
namespace {

/// What one attempt to replace a path may take: the peer's address may have changed meanwhile,
/// which the next attempt finds out.
constexpr Duration rebuild_limit = std::chrono::seconds(3);

}  // namespace

Connection::Connection(fabric::Provider& provider, Engine& engine, size_t worker)
    : provider_(provider), engine_(engine), worker_index_(worker) {
  deadline_.bind([](void* self) { static_cast<Connection*>(self)->on_deadline(); }, this);
  budget_.bind([](void* self) { static_cast<Connection*>(self)->on_budget_spent(); }, this);
}

Connection::~Connection() {
  if (context_ != nullptr) {
    context_->timers().cancel(deadline_);
    context_->timers().cancel(budget_);
  }
  for (Lane& lane : lanes_) {
    lane.owned.reset();
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
    case ConnectionMessage::doubt:
      if (ready_ && backup_ && !failed_ && message.arg < lanes_.size()) {
        on_lane_failed(message.arg, fail(Errc::remote, "it was reported not to be trusted"));
      }
      return;
  }
}

Result<void> Connection::make_path(Lane& lane, const sockaddr* local, bool active,
                                   Duration connect_limit) {
  fabric::PathOptions options;
  options.domain = domain_;
  options.writes_max = static_cast<uint32_t>(sends_max + cts_slots);
  options.receives_max = receives_;
  options.active = active;
  options.flushes = flushes_;
  options.traffic_class = traffic_class_;
  options.service_level = service_level_;
  options.connect_limit = connect_limit;
  lane.owned.reset();
  lane.writes_open = 0;
  lane.credits_open = 0;
  auto path = provider_.create_path(*context_, attachment_, local, options, this);
  if (!path) {
    return path.error();
  }
  lane.owned = std::move(*path);
  for (uint32_t credit = 0; credit < receives_; ++credit) {
    if (!post_credit(lane)) {
      return fail(Errc::internal, "cannot post the first receives of a path");
    }
  }
  return {};
}

Result<void> Connection::make_paths(const sockaddr* local, size_t count, bool active) {
  lanes_.resize(count);
  for (Lane& lane : lanes_) {
    if (auto made = make_path(lane, local, active, Duration(0)); !made) {
      return made;
    }
  }
  return {};
}

Result<void> Connection::remake_path(Lane& lane, bool active) {
  auto local = stream_->local_address();
  if (!local) {
    return local.error();
  }
  return make_path(lane, reinterpret_cast<const sockaddr*>(&*local), active, rebuild_limit);
}

Result<void> Connection::connect_paths(const std::vector<PathAddress>& peers) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (auto connected = lanes_[i].path().connect(peers[i].view()); !connected) {
      return connected;
    }
  }
  return {};
}

std::vector<PathAddress> Connection::path_addresses() const {
  std::vector<PathAddress> addresses;
  for (const Lane& lane : lanes_) {
    addresses.push_back(*PathAddress::from(lane.owned.path->local_address()));
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

bool Connection::post_credit(Lane& lane) {
  if (lane.path().post_receive(fabric::ReceivePost{}) != Errc::ok) {
    return false;
  }
  ++lane.credits_open;
  return true;
}

void Connection::fail_paths(const Error& why) {
  for (Lane& lane : lanes_) {
    lane.usable = false;
    if (lane.owned.path) {
      lane.path().fail(why);
    }
  }
}

bool Connection::any_usable() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.usable; });
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

void Connection::take_down(size_t lane, const Error& why) {
  Lane& mine = lanes_[lane];
  if (std::exchange(mine.usable, false)) {
    NHA_LOG_WARN("path {} of the connection to {} is down: {}", lane, peer_text(), why.message());
    FailoverCounts::add(channel()->failovers.down, 1);
    down_since_[lane] = context_->now();
    need_ = why.message();
  } else {
    NHA_LOG_DEBUG("path {} to {} is not back yet: {}", lane, peer_text(), why.message());
  }
  context_->recorder().note(TraceEvent::path_down, id().index, lane, mine.epoch);
  if (mine.owned.path) {
    mine.path().fail(why);
  }
}

void Connection::look_whether_drained(size_t lane) {
  const Lane& mine = lanes_[lane];
  if (!mine.drained() || failed_ || finished_) {
    return;
  }
  if (!mine.owned.path || mine.owned.path->state() == fabric::PathState::error) {
    on_lane_drained(lane);
  }
}

void Connection::watch_budget(bool in_need) {
  if (in_need == in_need_ || failed_) {
    return;
  }
  in_need_ = in_need;
  if (in_need) {
    const auto limit = std::chrono::milliseconds(context_->config().retry_budget_ms);
    context_->timers().arm(budget_, context_->now() + limit);
  } else {
    context_->timers().cancel(budget_);
  }
}

void Connection::on_budget_spent() {
  fail_connection(fail(Errc::remote, fmt::format("no path came back within {} ms "
                                                 "(HA_NCCL_RETRY_BUDGET_MS); it began with: {}",
                                                 context_->config().retry_budget_ms, need_)));
}

void Connection::log_back(size_t lane, const std::string& more) {
  const Duration stall = context_->now() - down_since_[lane];
  FailoverCounts& counts = channel()->failovers;
  FailoverCounts::add(counts.back, 1);
  const auto longest = static_cast<uint64_t>(stall.count());
  counts.longest_ns.store(std::max(counts.longest_ns.load(std::memory_order_relaxed), longest),
                          std::memory_order_relaxed);
  NHA_LOG_WARN("path {} of the connection to {} is back after {} ms: {}{}", lane, peer_text(),
               stall.count() / 1'000'000, lanes_[lane].path().describe(), more);
  context_->recorder().note(TraceEvent::path_up, id().index, lane,
                            static_cast<uint64_t>(stall.count()));
}

bool Connection::known_path(size_t path) {
  if (ready_ && backup_ && path < lanes_.size()) {
    return true;
  }
  fail_connection(fail(
      Errc::remote, ready_ ? "the peer speaks of a path that this connection does not have"
                           : "a path failed on the peer's side before the connection was ready"));
  return false;
}

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
  context_->timers().cancel(budget_);
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
  context_->timers().cancel(budget_);
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
    if (ready_) {
      on_lane_ready(lane_of(&path));
    } else if (++paths_ready_ == lanes_.size()) {
      for (Lane& lane : lanes_) {
        lane.usable = true;
      }
      on_paths_ready();
    }
    return;
  }
  // A failed handshake is told to the caller, who can still choose otherwise.
  if (!ready_ || !backup_ || ha::classify(path.cause()) == ha::ErrorClass::program) {
    fail_connection(error);
    return;
  }
  on_lane_failed(lane_of(&path), error);
}

}  // namespace nccl_ha
