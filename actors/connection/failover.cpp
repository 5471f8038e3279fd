#include "actors/connection/failover.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/connection_message.h"
#include "ha/error_class.h"
#include "runtime/base/log.h"

namespace nccl_ha {

Failover::Failover(ConnectionState& state, PathSet& paths, ControlLink& control, Liveness& liveness)
    : state_(state), paths_(paths), control_(control), liveness_(liveness) {
  budget_timer_.bind([](void* self) { static_cast<Failover*>(self)->on_budget_spent(); }, this);
}

void Failover::begin(const Config& config) {
  budget_ = ha::RetryBudget(static_cast<uint64_t>(config.max_retries),
                            std::chrono::milliseconds(config.retry_budget_ms));
  log_ = FailoverLog::of(*state_.context);
}

void Failover::stop() {
  if (state_.context != nullptr) {
    state_.context->timers().cancel(budget_timer_);
  }
}

void Failover::take_down(size_t lane, const Error& why, bool tried) {
  Lane& mine = paths_.lane(lane);
  mine.decided = true;
  mine.counters->failed.add();
  const bool outage = mine.usable && !(tried && down_since_[lane] == Instant{});
  mine.set_usable(false);
  paths_.count_missing();
  if (outage) {
    log(FailoverLog::Kind::down, lane, [&] {
      return fmt::format("path {} of the connection to {} is down: {}", lane,
                         state_.owner.peer_text(), why.message());
    });
    count_down(lane);
  } else {
    NHA_LOG_DEBUG("path {} to {} is not back yet: {}", lane, state_.owner.peer_text(),
                  why.message());
  }
  if (mine.rejected || ha::is_busy(why)) {
    budget_.resume();
  }
  if (why.code != Errc::again) {
    set_need(why);  // what was given up for another one is not to blame
  }
  state_.note(TraceEvent::path_down, lane, mine.epoch);
  state_.note_step(RoundStep::taken_down, lane, mine.epoch);
  if (mine.owned.path) {
    mine.path().fail(why);
  }
}

void Failover::count_down(size_t lane) {
  state_.counters->paths_down.add();
  down_since_[lane] = state_.context->now();
}

void Failover::take_into_use(size_t lane) {
  Lane& mine = paths_.lane(lane);
  mine.decided = true;
  mine.set_usable(true);
  paths_.count_missing();
  control_.boxes().begin(mine);
  state_.note_step(RoundStep::in_use, lane, mine.epoch);
  liveness_.begin(mine);
}

void Failover::log_back(size_t lane) {
  const auto describe = [&] { return paths_.lane(lane).path().describe(); };
  if (down_since_[lane] == Instant{}) {
    NHA_LOG_INFO("path {} of the connection to {} stands by: {}", lane, state_.owner.peer_text(),
                 describe());
    return;
  }
  const Duration stall = state_.context->now() - down_since_[lane];
  state_.counters->paths_back.add();
  state_.counters->longest_stall_ns.raise_to(static_cast<uint64_t>(stall.count()));
  const auto text = [&] {
    return fmt::format("path {} of the connection to {} is back after {} ms: {}", lane,
                       state_.owner.peer_text(), stall.count() / 1'000'000, describe());
  };
  log(FailoverLog::Kind::back, lane, text, {.stall = stall});
  state_.note(TraceEvent::path_up, lane, static_cast<uint64_t>(stall.count()));
  state_.ask_trace(TraceCause::failover);  // the round is whole now
}

bool Failover::drained(size_t lane) const {
  const Lane& mine = paths_.lane(lane);
  return mine.drained() &&
         (!mine.owned.path || mine.owned.path->state() == fabric::PathState::error);
}

const Error& Failover::reject(size_t lane, const Error& why) {
  Lane& mine = paths_.lane(lane);
  mine.rejected = true;
  rejection_ = fail(
      why.code,
      fmt::format("memory cannot be registered with {}: {}", paths_.interface_of(mine), why.what),
      why.sys);
  Message soon{};
  soon.to = state_.id;
  soon.kind = static_cast<uint32_t>(ConnectionMessage::rejected);
  soon.arg = static_cast<uint32_t>(lane);
  state_.context->send_self(soon);
  return rejection_;
}

bool Failover::fail_busy(size_t lane, const Error& why) {
  const bool busy = ha::is_busy(why);
  if (busy) {
    paths_.lane(lane).path().fail(why);
  }
  return busy;
}

void Failover::count_rejected() { state_.counters->paths_rejected.add(); }

void Failover::tell_shortage(const Error& why) {
  if (ha::is_shortage(why.sys) && !std::exchange(shortage_told_, true)) {
    NHA_LOG_WARN("a path to {} that is to stand by cannot be made, another one is tried: {}",
                 state_.owner.peer_text(), why.message());
  }
}

PathNotice Failover::notice_of(size_t lane, const Error& why) const {
  const Lane& mine = paths_.lane(lane);
  return {static_cast<uint8_t>(lane), mine.epoch, mine.rejected, false, why.message()};
}

void Failover::set_need(const Error& why) { need_ = without_reporter(why.message()); }

void Failover::log(FailoverLog::Kind kind, size_t lane, const std::function<std::string()>& text,
                   const FailoverLog::Counts& counts) const {
  log_->warn({kind, state_.id.index,
              lane < paths_.size() ? paths_.interface_of(paths_.lane(lane)) : std::string(),
              state_.peer_host.empty() ? control_.peer_address() : state_.peer_host, counts},
             text);
}

void Failover::tell_stuck(const Error& why) {
  log(FailoverLog::Kind::stuck, lanes_max, [&] {
    return fmt::format("a path of the connection to {} is not fenced yet: {}",
                       state_.owner.peer_text(), why.message());
  });
  set_need(why);
}

void Failover::watch_budget(bool in_need) {
  const auto before = budget_.ends();
  // It counts time in which this process ran.
  budget_.move_end(state_.context->now() + budget_limit_.left(state_.context->moment()));
  // Until the caller was told, its own time counts.
  budget_.need(in_need && state_.phase == ConnectionPhase::usable, state_.context->now());
  if (paths_.own_usable()) {
    budget_.served();
  }
  if (!state_.sound(budget_)) {
    return;
  }
  if (budget_.ends() == before || !state_.live()) {
    return;
  }
  if (!budget_.ends()) {
    state_.context->timers().cancel(budget_timer_);
    return;
  }
  if (!before) {
    budget_limit_.begin(state_.context->moment(), *budget_.ends() - state_.context->now());
  }
  state_.context->timers().arm(budget_timer_, *budget_.ends());
}

void Failover::on_budget_spent() {
  if (const Duration left = budget_limit_.left(state_.context->moment(), budget_timer_.deadline());
      left > Duration(0)) {
    budget_.move_end(state_.context->now() + left);
    state_.context->timers().arm(budget_timer_, *budget_.ends());
    return;
  }
  state_.fail(
      fail(Errc::remote, fmt::format("no path came back within {} ms (HA_NCCL_RETRY_BUDGET_MS); {}",
                                     state_.context->config().retry_budget_ms,
                                     liveness_.after_links("the last failed with: " + need_))));
}

bool Failover::knows(size_t lane) {
  if (state_.ready() && state_.backup && lane < paths_.size()) {
    return true;
  }
  state_.fail(
      fail(Errc::remote, state_.ready()
                             ? "the peer speaks of a path that this connection does not have"
                             : "a path failed on the peer's side before the connection was ready"));
  return false;
}

}  // namespace nccl_ha
