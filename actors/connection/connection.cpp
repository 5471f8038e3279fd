#include "actors/connection/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "actors/driver.h"
#include "ha/error_class.h"
#include "runtime/base/log.h"
#include "runtime/engine/engine.h"

namespace nccl_ha {
namespace {

/// A little more than an attempt to make a path may take.
constexpr Duration rails_limit = std::chrono::seconds(4);

}  // namespace

Connection::Connection(fabric::Provider& provider, Engine& engine, size_t worker,
                       const MakeSide& make_side)
    : state_(*this, provider, engine),
      worker_index_(worker),
      side_(make_side({state_, paths_, control_, liveness_, failover_}, *this)) {
  deadline_.bind([](void* self) { static_cast<Connection*>(self)->on_deadline(); }, this);
  rails_timer_.bind([](void* self) { static_cast<Connection*>(self)->on_rails_overdue(); }, this);
  linger_timer_.bind([](void* self) { static_cast<Connection*>(self)->on_linger_timer(); }, this);
}

Connection::~Connection() {
  stop_timers();
  paths_.end();  // they speak to the side, and use its memory
  state_.engine.add_load(worker_index_, -1.0);
}

void Connection::stop_timers() {
  if (state_.context != nullptr) {
    state_.context->timers().cancel(deadline_);
    state_.context->timers().cancel(rails_timer_);
    state_.context->timers().cancel(linger_timer_);
  }
  failover_.stop();
  liveness_.stop();
}

void Connection::start(Context& context) {
  state_.context = &context;
  state_.id = id();
  failover_.begin(context.config());
  liveness_.watch_links();
  side_->begin();
}

void Connection::on(const Message& message) {
  if (state_.phase == ConnectionPhase::gone) {
    return;
  }
  const auto kind = static_cast<ConnectionMessage>(message.kind);
  take_news();
  switch (kind) {
    case ConnectionMessage::doorbell:
      return;
    case ConnectionMessage::suspect:
      if (state_.ready() && state_.backup && message.arg < paths_.size()) {
        side_->on_lane_failed(message.arg,
                              nccl_ha::fail(Errc::remote, "it was reported not to be trusted"));
      }
      return;
    case ConnectionMessage::inbox:
      control_.read_inbox();
      return;
    case ConnectionMessage::rejected:
      // Unless a new path was made there meanwhile.
      if (state_.live() && paths_.lane(message.arg).rejected) {
        side_->on_lane_failed(message.arg, failover_.rejection());
      }
      return;
    case ConnectionMessage::slow_rail:
      if (state_.ready() && state_.backup) {
        side_->on_slow_rail(message.arg);
      }
      return;
    case ConnectionMessage::begun_anew:
      if (state_.phase < ConnectionPhase::usable) {
        side_->on_begun_anew();
      }
      return;
  }
}

void Connection::take_news() {
  Driver* driver = side_->driver();
  if (driver == nullptr) {
    return;
  }
  // Taken first: a request published from here on rings again.
  const uint32_t news = driver->take_news();
  const auto has = [&](CallerNews one) { return (news & static_cast<uint32_t>(one)) != 0; };
  if (has(CallerNews::submitted) && state_.ready()) {
    side_->on_doorbell();
  }
  if (has(CallerNews::oversize)) {
    fail(nccl_ha::fail(Errc::invalid_usage,
                       "a send was larger than the receive that the peer posted for it"),
         true);
  }
  if (has(CallerNews::close)) {
    close();
  }
}

void Connection::on_inbox() {
  Message wake{};
  wake.to = id();
  wake.kind = static_cast<uint32_t>(ConnectionMessage::inbox);
  state_.context->send_self(wake);
}

void Connection::arm_deadline(Duration in) {
  limit_.begin(state_.context->moment(), in);
  state_.context->timers().arm(deadline_, state_.context->now() + in);
}

std::string Connection::peer_name() const {
  const std::string address = control_.peer_address();
  const std::string& known = address.empty() ? side_->wanted_peer() : address;
  return state_.peer_host.empty()
             ? known
             : fmt::format("{} ({}, pid {})", known, state_.peer_host, state_.peer_process);
}

/// Several connections lead to one peer, also over one device.
std::string Connection::peer_text() const {
  const uint64_t key = state_.counters->key.get();
  return fmt::format(
      "{} by {} #{}", peer_name(), state_.provider.devices()[state_.attachment.device].name,
      key != 0 ? fmt::format("{:016x}", key) : fmt::format("{}.{}", worker_index_, id().index));
}

void Connection::on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) {
  const size_t at = paths_.index_of(&path);
  if (state_.lingers() && state == fabric::PathState::error) {
    paths_.lane(at).set_usable(false);
    look_whether_over();
  }
  if (!state_.live()) {
    return;
  }
  if (state == fabric::PathState::ready) {
    NHA_LOG_DEBUG("path ready: {}", path.describe());
    if (state_.ready()) {
      side_->on_lane_ready(at);
      tell_usable();
    } else {
      paths_.lane(at).decided = true;
      end_handshake();
    }
    return;
  }
  if (!side_->needs_paths()) {
    side_->on_lane_failed(at, error);
    return;
  }
  const ha::ErrorClass what = ha::classify(path.cause());
  const bool told = side_->told_paths();
  // Before the peer has answered it may want that too.
  const bool replaces = state_.agreed ? state_.backup : state_.context->config().enable_backup;
  const bool wrong = what == ha::ErrorClass::program ||
                     (what == ha::ErrorClass::memory && replaces && !excuses(at));
  if (!replaces || wrong) {
    fail(error, true);
    return;
  }
  if (state_.ready()) {
    if (paths_.lane(at).elsewhere()) {
      failover_.tell_shortage(error);
    }
    side_->on_lane_failed(at, error);
    tell_usable();
    return;
  }
  // Whatever failed, also the only path: the peer's host may just not have got to it yet, and
  // until the caller's time is up another one may come up.
  paths_.lane(at).decided = true;
  paths_.lane(at).early_failure = error;
  failover_.set_need(error);
  if (!told) {
    side_->on_first_address();  // one fewer to wait for
    return;
  }
  // The peer's side of it may wait for the whole handshake's time.
  control_.send(encode(ControlType::suspect,
                       PathNotice{static_cast<uint8_t>(at), 0, false, false, error.message()}));
  state_.context->request_stream_turns(1000);
  end_handshake();
}

/// Keys that software looks up are lost with no device.  A hop to a relay may be a device's, of
/// this host or of any further on.
bool Connection::excuses(size_t lane) {
  const fabric::PathTraits& traits = paths_.lane(lane).traits;
  const bool by_device = traits.keys_per_device || traits.hops != 0;
  std::array<uint32_t, lanes_max> epochs{};
  const auto lanes = paths_.lanes();
  std::ranges::transform(lanes, epochs.begin(), &Lane::epoch);
  const uint64_t done = state_.counters->sends_done.get() + state_.counters->receives_done.get();
  return by_device &&
         refusals_.excuse(lane, std::span<const uint32_t>(epochs).first(lanes.size()), done);
}

void Connection::on_path_address(fabric::Path& path) {
  if (!state_.live()) {
    return;
  }
  if (state_.ready()) {
    side_->on_lane_address(paths_.index_of(&path));
  } else {
    side_->on_first_address();
  }
}

/// When the first paths have come up or failed, the connection begins; what failed is then
/// replaced.
void Connection::end_handshake() {
  const auto lanes = paths_.lanes();
  if (!state_.agreed || !side_->told_paths() ||
      !std::all_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.decided; })) {
    return;
  }
  for (Lane& lane : lanes) {
    lane.set_usable(!lane.early_failure);
    if (lane.usable) {
      lane.health.begin(state_.context->moment());
    }
  }
  state_.enter(ConnectionPhase::settled);
  side_->on_settled();
  paths_.count_missing();
  for (size_t lane = 0; lane < paths_.size() && state_.live(); ++lane) {
    if (const auto why = std::exchange(paths_.lane(lane).early_failure, std::nullopt)) {
      failover_.count_down(lane);
      failover_.log(FailoverLog::Kind::not_up, lane, [&] {
        return fmt::format(
            "path {} of the connection to {} did not come up; others are tried, and it again: {}",
            lane, peer_text(), why->message());
      });
      side_->on_lane_failed(lane, *why);
    }
  }
  for (const auto& frame : std::exchange(early_, {})) {
    ControlReader reader;
    static_cast<void>(reader.feed(frame));
    const auto message = reader.next();
    if (message && state_.live()) {
      side_->on_control(*message);
    }
  }
  if (state_.live() && state_.rails.rails != 0) {
    state_.context->timers().arm(rails_timer_, state_.context->now() + rails_limit);
  }
  tell_usable();
}

bool Connection::rails_decided() const {
  const auto lanes = paths_.rail_lanes();
  return rails_overdue_ ||
         std::all_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.decided; });
}

void Connection::on_rails_overdue() {
  rails_overdue_ = true;
  tell_usable();
}

/// A connection that has a path does not fail for want of another rail.
void Connection::on_deadline() {
  if (const Duration left = limit_.left(state_.context->moment(), deadline_.deadline());
      left > Duration(0)) {
    state_.context->timers().arm(deadline_, state_.context->now() + left);
    return;
  }
  on_rails_overdue();
  if (state_.phase < ConnectionPhase::usable) {
    side_->on_deadline();
  }
}

/// The caller may use the connection from the moment on that there is a path, and that it is known
/// which rails there are: where traffic is not to take the first one, no byte of it does.
void Connection::tell_usable() {
  if (state_.phase == ConnectionPhase::settled && paths_.any_usable() && rails_decided()) {
    enter_usable();
  }
}

void Connection::enter_usable() {
  state_.enter(ConnectionPhase::usable);
  state_.context->timers().cancel(deadline_);
  state_.context->timers().cancel(rails_timer_);
  if (Channel* channel = side_->channel(); channel != nullptr && state_.counted.file) {
    channel->counter_block().rename(state_.context->counters().id(),
                                    fmt::format("{} {}", side_->name(), peer_name()));
  }
  side_->on_usable();
}

void Connection::on_control(const ControlReader::Message& message) {
  if (!take_early(message)) [[likely]] {
    side_->on_control(message);
    tell_usable();
  }
}

/// What the peer says of paths while this side is not ready yet: it may be ready itself, and takes
/// the confirmation of an earlier message for the word that this side is.
bool Connection::take_early(const ControlReader::Message& message) {
  if (state_.ready() || !state_.backup) {
    return false;
  }
  const Error malformed =
      nccl_ha::fail(Errc::remote, "malformed message about a path on the control stream");
  if (message.type == ControlType::rebuild) {
    const auto offer = decode_offer(message.payload);
    if (!offer || early_.size() >= 2 * lanes_max) {
      fail(malformed, true);
    } else {
      early_.push_back(encode(message.type, *offer));
    }
    return true;
  }
  if (message.type != ControlType::down && message.type != ControlType::suspect) {
    return false;
  }
  const auto notice = decode_notice(message.payload);
  // Of a first path; or of a fallback path that was offered meanwhile and has failed since.
  const bool first = notice && notice->path < paths_.size();
  const bool known =
      first ? notice->epoch == 0 : notice && notice->path < paths_.size() + state_.later_lanes();
  if (!known || early_.size() >= 2 * lanes_max) {
    fail(malformed, true);
    return true;
  }
  early_.push_back(encode(message.type, *notice));
  if (fabric::Path* path = first ? paths_.lane(notice->path).owned.path.get() : nullptr;
      path != nullptr && path->state() == fabric::PathState::connecting) {
    path->fail(from_peer(notice->why));
  }
  return true;
}

void Connection::on_work_back(size_t lane) {
  if (state_.live() && failover_.drained(lane)) {
    side_->on_lane_drained(lane);
  }
}

}  // namespace nccl_ha
