// Whether the paths of a connection still live: signs of life, silence, what others found out.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/connection.h"

namespace nccl_ha {
namespace {

/// How often lanes with unanswered work are looked at.
constexpr Duration watch_interval = std::chrono::milliseconds(20);

}  // namespace

void Connection::start_pulse() {
  if (!backup_) {
    return;
  }
  nics_ = NicMonitor::of(*context_, provider_.nics());
  nics_->enter(this);
  arm_pulse();
}

void Connection::arm_pulse() {
  context_->timers().cancel(pulse_);
  const auto usable =
      std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.usable; });
  if (usable < 2 || !nics_ || context_->config().heartbeat_ms == 0) {
    return;  // nothing would follow from the silence of the only path
  }
  // An idle connection costs its worker no more than its own signs of life.
  const bool busy = std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return lane.usable && lane.health.busy(lane.open());
  });
  const Duration interval = std::chrono::milliseconds(context_->config().heartbeat_ms);
  const Instant now = context_->now();
  watched_idle_ = !busy;
  // Idle connections speak at the same moments, so that their worker wakes once for all of them.
  const Instant together = now - now.time_since_epoch() % interval + interval;
  context_->timers().arm(pulse_, busy ? now + std::min(interval / 2, watch_interval) : together);
}

/// Gives signs of life where nothing else does, and looks whether each path still shows some.
void Connection::on_pulse() {
  const Instant now = context_->now();
  const Duration interval = std::chrono::milliseconds(context_->config().heartbeat_ms);
  const Instant period = now - now.time_since_epoch() % interval;
  const bool due = std::exchange(pulse_period_, period) != period;
  for (size_t i = 0; i < lanes_.size() && !failed_ && !finished_; ++i) {
    if (lanes_[i].usable && lanes_[i].peer_box != 0) {
      look_for_life(i, due);
    }
  }
  if (!failed_ && !finished_) {
    arm_pulse();
  }
}

void Connection::look_for_life(size_t at, bool pulse_due) {
  Lane& lane = lanes_[at];
  if (lane.health.take_unanswered()) {
    // The sender may have nothing to send; that it was told is what can be found out.
    give_sign_of_life(lane);
  }
  const Instant now = context_->now();
  const Config& config = context_->config();
  const ha::PathHealth::Limits limits{std::chrono::milliseconds(config.heartbeat_ms),
                                      std::chrono::milliseconds(config.soft_timeout_ms)};
  // Where there is no other way, the path itself says when to give up.
  if (lane.health.look(now, lane.open(), limits) && other_usable(at)) {
    const std::string interface = interface_of(lane);
    on_lane_failed(
        at, fail(Errc::timed_out, fmt::format("no sign of life for {} ms (at most {} ms lately)",
                                              (now - lane.health.alive_at()).count() / 1'000'000,
                                              lane.health.usual_silence().count() / 1'000'000)));
    nics_->suspect(this, interface, peer_host_);
    return;
  }
  if (pulse_due) {
    give_sign_of_life(lane);
  }
}

void Connection::give_sign_of_life(Lane& lane) {
  if (lane.pulses_open == 0 && post_mark(lane, pulse_id) == Errc::ok) {
    ++lane.pulses_open;
  }
  lane.health.on_pulse(context_->now());
}

/// So that a path on which nothing happens cannot be taken for one that works.
void Connection::ask_usable() {
  for (Lane& lane : lanes_) {
    if (lane.usable && lane.peer_box != 0) {
      give_sign_of_life(lane);
    }
  }
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
    give_sign_of_life(lane);
    arm_pulse();
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
    if (lanes_[i].usable && stands_in(lanes_[i]) && primary_usable()) {
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
