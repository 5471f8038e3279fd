// Whether the paths of a connection still live: heartbeats, silence, what others found out.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/connection.h"
#include "ha/mutation.h"

namespace nccl_ha {
namespace {

/// How often lanes with unanswered work are looked at.
constexpr Duration watch_interval = std::chrono::milliseconds(20);

/// Times HA_NCCL_RTO_MS: how long a path may be silent while nothing shows that the peer runs.
constexpr int unwitnessed_times = 3;

ha::PathHealth::Limits limits_of(const Config& config) {
  using std::chrono::milliseconds;
  return {milliseconds(config.heartbeat_ms), milliseconds(config.soft_timeout_ms),
          milliseconds(config.rto_ms), unwitnessed_times * milliseconds(config.rto_ms)};
}

}  // namespace

void Connection::start_heartbeats() {
  if (!backup_) {
    return;
  }
  nics_ = NicMonitor::of(*context_, provider_.nics());
  nics_->enter(this);
  arm_heartbeat();
}

void Connection::arm_heartbeat() {
  context_->timers().cancel(heartbeat_timer_);
  if (!any_usable() || !nics_) {
    return;
  }
  // An idle connection costs its worker no more than its own heartbeats.
  const bool busy = std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return lane.usable && lane.health.busy(lane.open());
  });
  watched_idle_ = !busy;
  const Instant now = context_->now();
  const Duration interval = std::chrono::milliseconds(context_->config().heartbeat_ms);
  std::optional<Instant> look;
  const auto look_at = [&](Instant then) { look = look ? std::min(*look, then) : then; };
  if (interval != Duration(0)) {
    // Idle connections speak at the same moments, so that their worker wakes once for all of them.
    look_at(now - now.time_since_epoch() % interval + interval);
  }
  if (busy) {
    look_at(now +
            (interval == Duration(0) ? watch_interval : std::min(interval / 2, watch_interval)));
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    const auto next = lane.usable ? lane.health.next_look(
                                        lane.open(), limits_of(context_->config()), other_usable(i))
                                  : std::nullopt;
    if (next && *next > now) {
      look_at(*next);
    }
  }
  if (look) {
    context_->timers().arm(heartbeat_timer_, *look);
  }
}

/// Gives heartbeats where nothing else does, and looks whether each path still shows life.
void Connection::on_heartbeat_timer() {
  const Instant now = context_->now();
  const Duration interval = std::chrono::milliseconds(context_->config().heartbeat_ms);
  bool due = false;
  if (interval != Duration(0)) {
    const Instant period = now - now.time_since_epoch() % interval;
    due = std::exchange(heartbeat_period_, period) != period;
  }
  for (size_t i = 0; i < lanes_.size() && !failed_ && !finished_; ++i) {
    if (lanes_[i].usable && lanes_[i].peer_box != 0) {
      check_liveness(i, due);
    }
  }
  if (!failed_ && !finished_) {
    arm_heartbeat();
  }
}

void Connection::check_liveness(size_t at, bool heartbeat_due) {
  using Finding = ha::PathHealth::Finding;
  Lane& lane = lanes_[at];
  if (lane.health.take_unanswered()) {
    // The sender may have nothing to send; that it was told is what can be found out.
    send_heartbeat(lane);
  }
  // Of a large write parts may be acknowledged long before all of it is.
  if (std::exchange(lane.progress_seen, lane.path().progress()) != lane.path().progress()) {
    lane.health.show_progress();
  }
  const Moment now = context_->moment();
  switch (lane.health.look(now, lane.open(), limits_of(context_->config()),
                           {other_usable(at), evidence_beside(lane)})) {
    case Finding::fine:
      break;
    case Finding::ask:
      probe_all();
      break;
    case Finding::silent:
      give_up(at, now);
      return;
  }
  if (heartbeat_due) {
    send_heartbeat(lane);
  }
}

void Connection::give_up(size_t at, const Moment& now) {
  const Lane& lane = lanes_[at];
  const auto ms = [](Duration time) { return time.count() / 1'000'000; };
  const Duration lost = now.now - lane.health.alive_at() - lane.health.silent_for(now);
  const std::string interface = interface_of(lane);
  on_lane_failed(
      at, fail(Errc::timed_out,
               fmt::format("no heartbeat for {} ms (limit {} ms, at most {} ms lately); {}{}",
                           ms(lane.health.silent_for(now)), ms(lane.health.allowed()),
                           ms(lane.health.usual_silence()),
                           lane.health.witnessed() ? "the peer itself runs"
                                                   : "nothing shows that the peer runs",
                           lost == Duration(0) ? std::string()
                                               : fmt::format("; this process did not run for {} ms "
                                                             "besides",
                                                             ms(lost)))));
  nics_->suspect(this, interface, peer_host_);
}

/// What came from elsewhere and shows that the peer could have answered on this lane.
uint64_t Connection::evidence_beside(const Lane& lane) const {
  uint64_t evidence = stream_messages_;
  for (const Lane& other : lanes_) {
    if (&other == &lane) {
      continue;
    }
    // A NIC acknowledges by itself, which proves something only for what a NIC would answer.
    const bool answers_alike = ha::mutated(ha::Mutation::nic_speaks_for_host) ||
                               other.at.kind != fabric::FabricKind::verbs ||
                               lane.at.kind == fabric::FabricKind::verbs;
    evidence += other.marks + (answers_alike ? other.health.life() : 0);
  }
  return evidence;
}

/// Whether the peer runs, on every way there is.
void Connection::probe_all() {
  probe_usable();
  std::vector<std::byte> frame = encode_ask();
  set_numbers(frame, 0, sequencer_.expected());
  write_stream(frame);
  context_->request_stream_turns(1000);
}

/// One at a time: the peer may ask much faster than a lane carries answers, and what they take is
/// what clear-to-sends and control messages need.
void Connection::confirm_on(Lane& lane) {
  if (!lane.usable || lane.peer_box == 0 || ha::mutated(ha::Mutation::confirmed_on_stream_only)) {
    return;
  }
  lane.confirm_due = lane.confirms_open != 0;
  if (lane.confirm_due) {
    return;
  }
  const Errc posted = post_mark(lane, linger_.peer_ends() ? answer_id : mark_id);
  lane.confirms_open += posted == Errc::ok ? 1 : 0;
  lane.control_due = lane.control_due || posted == Errc::again;
}

Errc Connection::post_mark(Lane& lane, uint64_t id) {
  fabric::WritePost post;
  post.id = id;
  post.has_immediate = true;
  post.immediate = ControlMark{0, static_cast<uint16_t>(sequencer_.expected()), lane.epoch}.pack();
  post.host_memory = true;
  const Errc posted = lane.path().post_write(post);
  lane.writes_open += posted == Errc::ok ? 1 : 0;
  return posted;
}

void Connection::send_heartbeat(Lane& lane) {
  if (lane.heartbeats_open == 0 && post_mark(lane, heartbeat_id) == Errc::ok) {
    ++lane.heartbeats_open;
  }
  lane.health.on_heartbeat_timer(context_->moment());
}

/// So that a path on which nothing happens cannot be taken for one that works.
void Connection::probe_usable() {
  for (Lane& lane : lanes_) {
    if (lane.usable && lane.peer_box != 0) {
      send_heartbeat(lane);
    }
  }
  arm_heartbeat();
}

std::string Connection::interface_of(const Lane& lane) const {
  return provider_.nic_of(lane.at, reinterpret_cast<const sockaddr*>(&lane.local));
}

/// Asks at once where others found no answer.
void Connection::on_suspicion(const std::string& interface, const std::string& peer) {
  if (context_->config().heartbeat_ms == 0) {
    return;
  }
  for (Lane& lane : lanes_) {
    if (!lane.usable || lane.health.suspected() || lane.peer_box == 0 || peer != peer_host_ ||
        failed_ || finished_ || interface_of(lane) != interface) {
      continue;
    }
    lane.health.suspect();
    send_heartbeat(lane);
    arm_heartbeat();
  }
}

bool Connection::backs_with_others() const {
  const auto own = std::count_if(places_.begin(), places_.end(), [&](const fabric::Place& place) {
    return place.at.kind == attachment_.kind;
  });
  return own > 1 && static_cast<size_t>(own) != places_.size();
}

/// Where only another fabric stands by, while nobody needs it, a NIC of the own one may do so
/// again.
void Connection::on_link_up(const std::string& interface) {
  const bool better = backs_with_others() &&
                      std::any_of(places_.begin(), places_.end(), [&](const fabric::Place& place) {
                        return place.at.kind == attachment_.kind &&
                               place.at.device != attachment_.device &&
                               provider_.nic_of(place.at, nullptr) == interface;
                      });
  for (size_t i = primaries_; better && i < lanes_.size() && !failed_ && !finished_; ++i) {
    if (lanes_[i].usable && is_fallback(lanes_[i]) && primary_usable()) {
      on_lane_failed(i, fail(Errc::again, fmt::format("{} is back and could stand by", interface)));
    }
  }
}

void Connection::on_link_down(const std::string& interface) {
  for (size_t i = 0; ready_ && i < lanes_.size() && !failed_ && !finished_; ++i) {
    Lane& lane = lanes_[i];
    // Alone, a path waits: the link may be back before anybody had to know.
    if (lane.usable && other_usable(i) && interface_of(lane) == interface) {
      on_lane_failed(i, fail(Errc::system, fmt::format("{} has no link", interface)));
    }
  }
}

}  // namespace nccl_ha
