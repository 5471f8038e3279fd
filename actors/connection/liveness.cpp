#include "actors/connection/liveness.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/base/log.h"

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

Liveness::Liveness(Owner& owner, ConnectionState& state, PathSet& paths, ControlLink& control)
    : owner_(owner), state_(state), paths_(paths), control_(control) {
  timer_.bind([](void* self) { static_cast<Liveness*>(self)->on_timer(); }, this);
}

Liveness::~Liveness() {
  stop();
  if (nics_) {
    nics_->unsubscribe(this);
  }
}

void Liveness::watch_links() {
  if (state_.context->config().enable_backup) {
    links_ = NicMonitor::of(*state_.context, state_.provider.nics());
  }
}

std::string Liveness::after_links(const std::string& what, bool known,
                                  const sockaddr* local) const {
  std::set<std::string> own{state_.provider.nic_of(state_.attachment, local)};
  for (const Lane& lane : std::as_const(paths_).lanes()) {
    own.insert(paths_.interface_of(lane));
  }
  own.erase("");
  const auto interfaces = state_.provider.interfaces();
  const auto is_gone = [&](const std::string& nic) {
    return std::ranges::any_of(
        *interfaces, [&](const auto& one) { return one.name == nic && one.ifindex == 0; });
  };
  std::set<std::string> dead;
  std::copy_if(
      own.begin(), own.end(), std::inserter(dead, dead.end()),
      [&](const std::string& nic) { return links_ && (!links_->has_link(nic) || is_gone(nic)); });
  if (dead.empty()) {
    return what;
  }
  const std::string text = fmt::format("{} of this host {} no link: check cables and switch ports",
                                       fmt::join(dead, " and "), dead.size() == 1 ? "has" : "have");
  return (dead == own && !known) || what.empty() ? text : text + "; " + what;
}

void Liveness::start() {
  if (!state_.backup) {
    return;
  }
  nics_ = NicMonitor::of(*state_.context, state_.provider.nics());
  nics_->enter(this);
  arm();
}

void Liveness::stop() {
  if (state_.context != nullptr) {
    state_.context->timers().cancel(timer_);
  }
}

void Liveness::begin(Lane& lane) {
  lane.health.begin(state_.context->moment());
  arm();
}

void Liveness::arm() {
  Context& context = *state_.context;
  context.timers().cancel(timer_);
  if (!paths_.any_usable() || !nics_) {
    return;
  }
  const auto lanes = paths_.lanes();
  // An idle connection costs its worker no more than its own heartbeats.
  const bool busy = std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) {
    return lane.usable && lane.health.busy(lane.open());
  });
  watched_idle_ = !busy;
  const Instant now = context.now();
  const Duration interval = std::chrono::milliseconds(context.config().heartbeat_ms);
  std::optional<Instant> look;
  const auto look_at = [&](Instant then) { look = look ? std::min(*look, then) : then; };
  if (interval != Duration(0)) {
    look_at(pace().next(now));
  }
  if (busy) {
    look_at(now +
            (interval == Duration(0) ? watch_interval : std::min(interval / 2, watch_interval)));
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    const Lane& lane = lanes[i];
    const auto next = lane.usable ? lane.health.next_look(lane.open(), limits_of(context.config()),
                                                          paths_.other_steady(i))
                                  : std::nullopt;
    if (next && *next > now) {
      look_at(*next);
    }
  }
  if (look) {
    context.timers().arm(timer_, *look);
  }
}

void Liveness::on_timer() {
  const Instant now = state_.context->now();
  const Duration interval = std::chrono::milliseconds(state_.context->config().heartbeat_ms);
  bool due = false;
  if (interval != Duration(0)) {
    const ha::HeartbeatPace paced = pace();
    const uint64_t moment = paced.moment(now);
    due = paced.due_since(std::exchange(moment_, moment), moment);
  }
  for (size_t i = 0; i < paths_.size() && state_.live(); ++i) {
    if (paths_.lane(i).carries_control()) {
      check(i, due);
    }
  }
  if (state_.live()) {
    owner_.on_looked();
  }
  if (state_.live()) {
    arm();
  }
}

/// Where heartbeats are given.
ha::HeartbeatPace Liveness::pace() const {
  return {std::chrono::milliseconds(state_.context->config().heartbeat_ms), nics_->members(),
          state_.id.index, watched_idle_};
}

void Liveness::check(size_t at, bool heartbeat_due) {
  using Finding = ha::PathHealth::Finding;
  Lane& lane = paths_.lane(at);
  if (lane.health.take_unanswered()) {
    // The sender may have nothing to send; that it was told is what can be found out.
    send_heartbeat(lane);
  }
  // Of a large write parts may be acknowledged long before all of it is.
  if (std::exchange(lane.progress_seen, lane.path().progress()) != lane.path().progress()) {
    lane.health.show_progress();
  }
  if (lane.writes_open != 0) {
    state_.note(TraceEvent::queue_depth, lane.bytes_open, lane.writes_open, at);
  }
  const Moment now = state_.context->moment();
  switch (lane.health.look(now, lane.open(), limits_of(state_.context->config()),
                           {paths_.other_steady(at), evidence_beside(lane)})) {
    case Finding::fine:
      break;
    case Finding::ask:
      probe_all();
      break;
    case Finding::silent:
      if (state_.sound(lane.health)) {
        give_up(at, now);
      }
      return;
  }
  if (!state_.sound(lane.health)) {
    return;
  }
  if (heartbeat_due) {
    send_heartbeat(lane);
  }
}

void Liveness::give_up(size_t at, const Moment& now) {
  const Lane& lane = paths_.lane(at);
  const auto ms = [](Duration time) { return time.count() / 1'000'000; };
  const Duration lost = now.now - lane.health.alive_at() - lane.health.silent_for(now);
  const fabric::FailureDomains domains = paths_.domains_of(lane);
  owner_.on_lane_failed(
      at, fail(Errc::timed_out,
               fmt::format("no heartbeat for {} ms (limit {} ms, as {}){}",
                           ms(lane.health.silent_for(now)), ms(lane.health.allowed()),
                           lane.health.witnessed() ? "the peer itself runs"
                                                   : "nothing shows that the peer runs",
                           lost == Duration(0) ? std::string()
                                               : fmt::format("; this process did not run for {} ms "
                                                             "besides",
                                                             ms(lost)))));
  nics_->suspect(this, domains, state_.peer_host);
}

/// What came from elsewhere and shows that the peer could have answered on this lane.
uint64_t Liveness::evidence_beside(const Lane& lane) const {
  uint64_t evidence = control_.stream_messages();
  for (const Lane& other : paths_.lanes()) {
    if (&other == &lane) {
      continue;
    }
    // A NIC acknowledges by itself, which proves something only for what a NIC would answer.
    const bool answers_alike = !other.traits.acknowledged_by_nic || lane.traits.acknowledged_by_nic;
    evidence += other.control.marks + (answers_alike ? other.health.life() : 0);
  }
  return evidence;
}

/// Whether the peer runs, on every way there is.
void Liveness::probe_all() {
  probe_usable();
  control_.send_ask();
  state_.context->request_stream_turns(1000);
}

void Liveness::send_heartbeat(Lane& lane) {
  control_.boxes().send_heartbeat(lane);
  lane.health.on_heartbeat_timer(state_.context->moment());
}

/// So that a path on which nothing happens cannot be taken for one that works.
void Liveness::probe_usable() {
  for (Lane& lane : paths_.lanes()) {
    if (lane.carries_control()) {
      send_heartbeat(lane);
    }
  }
  arm();
}

/// A silent path's own NIC says nothing of paths to other hosts; all else that it led through does.
bool Liveness::is_suspicious(const Lane& lane, const fabric::FailureDomains& domains,
                             const std::string& peer) const {
  using Kind = fabric::FailureDomain::Kind;
  const fabric::FailureDomains own = paths_.domains_of(lane);
  return std::any_of(own.begin(), own.end(), [&](const fabric::FailureDomain& one) {
    return (one.kind != Kind::local_nic || peer == state_.peer_host) && contains(domains, one);
  });
}

/// It was not asked already, and can be.
bool Liveness::may_be_asked(const Lane& lane) const {
  return lane.carries_control() && !lane.health.suspected() &&
         state_.context->config().heartbeat_ms != 0;
}

/// Asks at once whether it still answers.
void Liveness::ask(Lane& lane) {
  lane.health.suspect();
  send_heartbeat(lane);
  arm();
}

/// Where others found no answer.
void Liveness::on_suspicion(const fabric::FailureDomains& domains, const std::string& peer) {
  for (Lane& lane : paths_.lanes()) {
    if (may_be_asked(lane) && state_.live() && is_suspicious(lane, domains, peer)) {
      ask(lane);
    }
  }
}

/// Alone, a path waits, as the link may be back before anybody had to know.  It is asked at once
/// whether it answers, so that one that comes up beside it meanwhile takes over soon.
void Liveness::on_link_down(size_t lane, const Error& why) {
  if (!state_.ready() || !state_.backup || !paths_.lane(lane).usable) {
    return;
  }
  if (paths_.other_usable(lane)) {
    owner_.on_lane_failed(lane, why);
  } else if (may_be_asked(paths_.lane(lane))) {
    NHA_LOG_INFO("path {} of the connection to {} is the only one and waits: {}", lane,
                 state_.owner.peer_text(), why.message());
    ask(paths_.lane(lane));
  }
}

void Liveness::on_domain_up(const fabric::FailureDomain& domain) { owner_.on_domain_up(domain); }

void Liveness::on_domain_down(const fabric::FailureDomain& domain) {
  const bool nic = domain.kind == fabric::FailureDomain::Kind::local_nic;
  for (size_t i = 0; i < paths_.size() && state_.ready(); ++i) {
    const Lane& lane = paths_.lane(i);
    // Alone, a path waits: the link may be back before anybody had to know.
    if (lane.usable && paths_.other_usable(i) && paths_.is_in(lane, domain)) {
      owner_.on_lane_failed(
          i, fail(Errc::system,
                  fmt::format("{} {}", domain.name, nic ? "has no link" : "is out of reach")));
    }
  }
}

}  // namespace nccl_ha
