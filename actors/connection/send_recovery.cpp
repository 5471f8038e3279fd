#include "actors/connection/send_recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"

namespace nccl_ha {

SendRecovery::SendRecovery(const ConnectionParts& parts, Sender& sender, Owner& owner)
    : parts_(parts),
      state_(parts.state),
      paths_(parts.paths),
      failover_(parts.failover),
      sender_(sender),
      owner_(owner),
      renewal_(*this, parts, sender) {
  for (Timer* timer : {&failback_timer_, &slow_timer_}) {
    timer->bind(
        [](void* self) {
          auto* mine = static_cast<SendRecovery*>(self);
          mine->choose_lanes();
          mine->sender_.pump();
        },
        this);
  }
}

void SendRecovery::stop() {
  renewal_.stop();
  if (state_.context != nullptr) {
    state_.context->timers().cancel(failback_timer_);
    state_.context->timers().cancel(slow_timer_);
  }
}

void SendRecovery::begin() {
  const Config& config = state_.context->config();
  const auto failback = std::chrono::milliseconds(config.failback_ms);
  serving_ = ha::ServingSet(failback);
  // Connections on one NIC that is slow do not all try the same standby at once.
  detour_ = ha::Detour({.factor = static_cast<double>(config.slow_factor),
                        .time = std::chrono::milliseconds(config.straggler_ms),
                        .after = failback,
                        .spread = state_.context->random().unit()});
  lanes_.resize(paths_.size());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (paths_.lane(i).elsewhere()) {
      lanes_[i].lane = ha::SenderLane(ha::SenderLane::State::down, paths_.lane(i).shadow);
    } else {
      static_cast<void>(lanes_[i].lane.on_ready());
    }
  }
  renewal_.begin();
  choose_lanes();
}

void SendRecovery::on_lane_ready(size_t lane) {
  take_steps(lane, lanes_[lane].lane.on_ready(), {});
}

void SendRecovery::on_lane_failed(size_t lane, const Error& error) {
  if (!renewal_.fail_unoffered(lane, error)) {
    take_steps(lane, lanes_[lane].lane.on_failed(), error);
  }
}

void SendRecovery::on_lane_drained(size_t lane) {
  if (!lanes_.empty()) {
    take_steps(lane, lanes_[lane].lane.on_drained(), {});
  }
}

void SendRecovery::on_fence_late(size_t lane) {
  if (state_.ready() && state_.backup) {
    take_steps(lane, lanes_[lane].lane.on_unproven(), {});
  }
}

void SendRecovery::on_fence_proven(size_t lane) {
  if (state_.live()) {
    paths_.lane(lane).unproven = false;
    take_steps(lane, lanes_[lane].lane.on_proven(), {});
  }
}

void SendRecovery::on_path_message(const ControlReader::Message& message) {
  if (message.type == ControlType::fenced) {
    on_fenced(message.payload);
  } else if (message.type == ControlType::rebuilt) {
    on_rebuilt(message.payload);
  } else {
    on_suspect(message.payload);
  }
}

void SendRecovery::on_suspect(std::span<const std::byte> payload) {
  const auto notice = decode_notice(payload);
  if (!failover_.is_of_ours(notice)) {
    return;
  }
  Lane& lane = paths_.lane(notice->path);
  state_.note_step(RoundStep::suspect_heard, notice->path, notice->epoch);
  if (notice->rejected && lane.elsewhere() && notice->epoch == lane.epoch) {
    lane.rejected = true;
    renewal_.reject_end(notice->path, ha::ShadowCandidates::End::remote, notice->why);
  }
  take_steps(notice->path, lanes_[notice->path].lane.on_suspect(notice->epoch),
             from_peer(notice->why));
}

void SendRecovery::on_fenced(std::span<const std::byte> payload) {
  auto report = decode_report(payload);
  if (!failover_.is_of_ours(report)) {
    return;
  }
  state_.note_step(RoundStep::report_heard, report->path, report->epoch);
  Recovery& recovery = lanes_[report->path];
  recovery.report = std::move(report->arrived);
  take_steps(report->path, recovery.lane.on_fenced(report->epoch), {});
}

void SendRecovery::on_rebuilt(std::span<const std::byte> payload) {
  const auto offer = decode_offer(payload);
  if (!failover_.is_of_ours(offer)) {
    return;
  }
  const size_t lane = offer->path;
  state_.note_step(RoundStep::answer_heard, lane, offer->epoch);
  const ha::SenderSteps steps = lanes_[lane].lane.on_rebuilt(offer->epoch);
  if (steps.connect) {
    if (auto connected = paths_.connect(paths_.lane(lane), offer->end); !connected) {
      on_lane_failed(lane, connected.error());
    }
    return;
  }
  take_steps(lane, steps, {});
}

void SendRecovery::take_steps(size_t lane, const ha::SenderSteps& steps, const Error& why) {
  Recovery& recovery = lanes_[lane];
  if (!state_.sound(recovery.lane)) {
    return;
  }
  if (steps.protocol_error) {
    state_.fail(fail(Errc::remote, "the peer's messages about a path make no sense"));
    return;
  }
  if (steps.take_down) {
    take_down(lane, why);
    if (!state_.live()) {
      return;
    }
  }
  if (steps.abandon) {
    paths_.lane(lane).unproven = true;
    paths_.lane(lane).path().abandon();
    return;  // what has come back by it has taken its own steps
  }
  if (steps.say_down) {
    if (!state_.holds(failover_.drained(lane), "down is said when all work has come back")) {
      return;
    }
    state_.note_step(RoundStep::down_said, lane, paths_.lane(lane).epoch);
    PathNotice notice = failover_.notice_of(lane, recovery.reason);
    notice.unproven = !recovery.lane.proven();
    parts_.control.send(encode(ControlType::down, notice));
    state_.context->request_stream_turns(1000);
  }
  if (steps.apply_report) {
    paths_.lane(lane).counters->fenced.add();
    apply_report(lane);
  }
  if (steps.reopen && state_.live()) {
    renewal_.reopen_soon(lane);
  }
  if (steps.use) {
    renewal_.on_lane_up(lane);
    failover_.take_into_use(lane);
    recovery.life_before = paths_.lane(lane).health.life();
    recovery.usable_since = state_.context->now();
    if (paths_.lane(lane).shadow) {
      parts_.liveness.probe_usable();  // by which the peer knows that it stands by
      ++recovery.life_before;          // the answer to that is no traffic
    }
    failover_.log_back(lane);
  }
  choose_lanes();
  watch_budget();
  owner_.on_steps_taken();
  sender_.pump();
}

void SendRecovery::take_down(size_t lane, const Error& why) {
  Recovery& recovery = lanes_[lane];
  Lane& mine = paths_.lane(lane);
  const bool carried = mine.health.life() > recovery.life_before;
  bool spent = false;
  recovery.reason = why;
  renewal_.on_lane_down(lane, carried);
  if (mine.usable) {
    // A lane that nobody needed has failed nobody.
    const bool needed = serving_.serves(lane);
    recovery.was_used = true;
    recovery.alive_at = mine.health.alive_at();
    recovery.down_at = state_.context->now();
    spent = !mine.rejected && !failover_.budget().on_failed(carried, needed);
  }
  failover_.take_down(lane, why);
  renewal_.hasten();
  sender_.leave(lane);
  if (spent) {
    state_.fail(
        fail(Errc::remote, fmt::format("paths came up and failed again {} times in a row without "
                                       "carrying anything (HA_NCCL_MAX_RETRIES); the last: {}",
                                       failover_.budget().failures(), why.message())));
    return;
  }
  state_.owner.on_work_back(lane);  // perhaps nothing was posted any more
}

/// As the lanes are now.  The device's rails have ranks 0 and 1, the shadows take over in their
/// order.
ha::ServingSet::View SendRecovery::view() {
  const ha::RailRanks ranks = ha::ranks_of(state_.terms.mode, state_.rails);
  const bool others = std::ranges::any_of(
      paths_.lanes(), [&](const Lane& lane) { return lane.usable && !is_fenced_off(lane); });
  for (size_t i = 0; i < paths_.size(); ++i) {
    const Lane& lane = paths_.lane(i);
    ha::ServingSet::Lane& seen = seen_[i];
    seen.usable = lane.usable;
    seen.rank = static_cast<uint8_t>(lane.shadow            ? ranks.shadows + i - paths_.own()
                                     : lane.on_other_rail() ? ranks.others
                                                            : ranks.first);
    seen.rail = lane.rail;
    seen.weight = others && is_fenced_off(lane) ? 0 : 1;
    seen.fallback = paths_.is_fallback(lane);
    seen.since = lanes_[i].usable_since;
  }
  // Between isolated rails that is no choice: within an island traffic belongs on SUP.
  return {std::span(seen_).first(paths_.size()),
          state_.context->config().enable_failback || ranks.first != 0, sender_.between_chunks(),
          detour_.detains(state_.context->now())};
}

/// Moves traffic if it is better off elsewhere.
void SendRecovery::choose_lanes() {
  const bool awaits_rails = state_.rails.rails != 0 && state_.phase != ConnectionPhase::usable;
  if (!state_.live() || awaits_rails) {
    return;
  }
  look_at_fenced_rails();
  const auto step = serving_.look(view(), state_.context->now());
  if (!state_.sound(serving_)) {
    return;
  }
  sender_.serve(serving_.shares());
  if (step == ha::ServingSet::Step::move) {
    tell_move();
  } else if (step == ha::ServingSet::Step::later) {
    state_.context->timers().cancel(failback_timer_);
    state_.context->timers().arm(failback_timer_, serving_.look_at());
  }
}

bool SendRecovery::is_fenced_off(const Lane& lane) const {
  return !lane.shadow && sender_.stragglers().fenced(lane.rail);
}

void SendRecovery::on_slow_rail(size_t rail) {
  for (size_t at = 0; at < paths_.size() && state_.live(); ++at) {
    const Lane& lane = paths_.lane(at);
    if (lane.usable && lane.rail == rail && is_fenced_off(lane)) {
      on_lane_failed(at, fail(Errc::again,
                              "its rail is slow and is fenced off "
                              "(HA_NCCL_FENCE_STRAGGLERS)"));
    }
  }
}

/// As view() shows the lanes.
ha::Detour::View SendRecovery::detour_view() {
  ha::Detour::View seen{serving_.rank(), std::nullopt, 0};
  const auto lanes = view().lanes;
  for (size_t i = 0; i < lanes.size(); ++i) {
    const ha::ServingSet::Lane& lane = lanes[i];
    if (lane.usable && lane.weight != 0 && lane.rank != seen.rank &&
        paths_.is_steady(paths_.lane(i)) && (!seen.other || lane.rank < *seen.other)) {
      seen.other = lane.rank;
      // Other rails of the device may serve together.
      seen.promised = paths_.lane(i).shadow ? paths_.lane(i).traits.bandwidth : 0;
    }
  }
  return seen;
}

/// A fence that nothing waits for may take as long as it takes.
void SendRecovery::watch_budget() {
  bool in_need = !paths_.any_usable();
  for (size_t at = 0; at < lanes_.size() && !in_need; ++at) {
    const ha::SenderLane& lane = lanes_[at].lane;
    in_need = lane.state() == ha::SenderLane::State::fencing && sender_.holds(at);
    if (in_need && lane.waits_for_peer()) {
      failover_.set_need(fail(Errc::remote, fmt::format("the peer does not say what had arrived "
                                                        "over path {}: does its NIC hang?",
                                                        at)));
    }
  }
  failover_.watch_budget(in_need);
}

void SendRecovery::look_for_slowness() {
  if (failover_.budget().ends()) {
    watch_budget();  // what was sent since may show that nothing is missing
  }
  if (state_.phase != ConnectionPhase::usable || serving_.shares().empty()) {
    return;
  }
  const Moment now = state_.context->moment();
  const ha::Detour::Step step = detour_.look(detour_view(), sender_.meter(), now);
  if (!state_.sound(detour_)) {
    return;
  }
  if (step == ha::Detour::Step::kept) {
    constexpr double mega = 1e6;
    NHA_LOG_WARN(
        "path {} of the connection to {} delivers {:.1f} MB/s where the one before it "
        "delivered {:.1f} MB/s: traffic stays there",
        serving_.shares().front().lane, state_.owner.peer_text(), detour_.rates().here / mega,
        detour_.rates().other / mega);
  } else if (step != ha::Detour::Step::stay) {
    leave_slow_rank(step);
  }
  if (std::exchange(detained_, detour_.detains(now.now)) && !detained_) {
    choose_lanes();
  }
}

/// What its lanes hold goes again elsewhere: it would take as long there as the path is slow.
void SendRecovery::leave_slow_rank(ha::Detour::Step step) {
  constexpr double mega = 1e6;
  const ha::Detour::Rates rates = detour_.rates();
  const bool back = step == ha::Detour::Step::back;
  state_.counters->detours.add(back ? 0 : 1);
  state_.counters->detours_vain.add(back ? 1 : 0);
  const size_t first = serving_.shares().front().lane;
  state_.note(TraceEvent::path_slow, static_cast<uint64_t>(rates.here),
              static_cast<uint64_t>(rates.other), first);
  const Error why = fail(
      Errc::again,
      back ? fmt::format("it delivers {:.1f} MB/s, which is not enough to replace a path that "
                         "delivered {:.1f} MB/s; another one is tried in {} s at the earliest",
                         rates.here / mega, rates.other / mega,
                         std::chrono::duration_cast<std::chrono::seconds>(detour_.wait()).count())
           : fmt::format("it is slow: it delivers {:.1f} MB/s while data waits, and delivered "
                         "{:.1f} MB/s before (HA_NCCL_SLOW_FACTOR)",
                         rates.here / mega, rates.other / mega));
  for (size_t at = 0; at < paths_.size() && state_.live(); ++at) {
    if (paths_.lane(at).usable && seen_[at].rank == seen_[first].rank) {
      on_lane_failed(at, why);
    }
  }
}

/// They come back when all their lanes have worked for long enough.
void SendRecovery::look_at_fenced_rails() {
  const Instant now = state_.context->now();
  std::optional<Instant> next;
  for (size_t rail = 0; rail <= state_.rails.rails; ++rail) {
    if (!sender_.stragglers().fenced(rail)) {
      continue;
    }
    bool whole = true;
    Instant since{};
    for (size_t at = 0; at < paths_.own(); ++at) {
      if (paths_.lane(at).rail == rail) {
        whole = whole && paths_.lane(at).usable;
        since = std::max(since, lanes_[at].usable_since);
      }
    }
    const Instant due = sender_.stragglers().due(rail, since);
    if (whole && now >= due) {
      sender_.release(rail);
      NHA_LOG_WARN("rail {} of the connection to {}, which was slow, carries data again", rail,
                   state_.owner.peer_text());
    } else if (whole) {
      next = next ? std::min(*next, due) : due;
    }
  }
  state_.context->timers().cancel(slow_timer_);
  if (next) {
    state_.context->timers().arm(slow_timer_, *next);
  }
}

/// The peer tells no keys for a shadow as long as it sees one of the own paths work, and does not
/// know that such a one is fenced off.
bool SendRecovery::release_fenced() {
  bool any = false;
  for (size_t at = 0; at < paths_.own(); ++at) {
    const Lane& lane = paths_.lane(at);
    if (lane.usable && is_fenced_off(lane)) {
      sender_.release(lane.rail);
      NHA_LOG_WARN(
          "rail {} of the connection to {}, which was slow, carries data again, as nothing else "
          "can",
          lane.rail, state_.owner.peer_text());
      any = true;
    }
  }
  return any;
}

bool SendRecovery::give_way() {
  const Instant now = state_.context->now();
  const auto over_shadows = [&] {
    const auto& shares = serving_.shares();
    return !shares.empty() && paths_.lane(shares.front().lane).shadow;
  };
  const bool gives =
      serving_.give_way(view(), now) || (state_.sound(serving_) && over_shadows() &&
                                         release_fenced() && serving_.give_way(view(), now));
  if (!gives || !state_.sound(serving_)) {
    return false;
  }
  sender_.serve(serving_.shares());
  tell_move();
  return true;
}

void SendRecovery::tell_move() {
  if (!state_.holds(!serving_.shares().empty(), "traffic moves to lanes that work")) {
    return;
  }
  const size_t lane = serving_.shares().front().lane;
  const bool to_shadow = paths_.lane(lane).shadow;
  state_.counters->traffic_moves.add();
  using Kind = FailoverLog::Kind;
  const Kind kind = to_shadow              ? Kind::moved_to_shadow
                    : serving_.rank() != 0 ? Kind::moved
                                           : Kind::moved_back;
  failover_.log(kind, lane, [&] {
    return fmt::format("traffic to {} moved {} path {}: {}", state_.owner.peer_text(),
                       kind == Kind::moved_to_shadow ? "to the shadow"
                       : kind == Kind::moved         ? "to"
                                                     : "back to",
                       lane, paths_.lane(lane).path().describe());
  });
  state_.note(TraceEvent::traffic_moved, lane, to_shadow ? 1 : 0);
}

void SendRecovery::apply_report(size_t lane) {
  const Sender::TakenBack counts = sender_.take_back(lane, lanes_[lane].report);
  if (!counts.good) {
    return;
  }
  state_.counters->chunks_again.add(counts.chunks_again);
  state_.counters->bytes_again.add(counts.bytes_again);
  state_.counters->chunks_kept.add(counts.chunks_kept);
  tell_failover(lane, counts);
}

/// The one line about a path that was in use and failed.
void SendRecovery::tell_failover(size_t lane, const Sender::TakenBack& counts) {
  Recovery& recovery = lanes_[lane];
  if (!std::exchange(recovery.was_used, false)) {
    return;
  }
  const Instant now = state_.context->now();
  const Duration stall = now - recovery.alive_at;
  const auto shares = serving_.shares();
  const auto text = [&] {
    return fmt::format(
        "failover of path {} to {}: {}; {} ms after its last heartbeat, {} ms after it was given "
        "up, {}; {} chunks ({} bytes) go again, {} ({} bytes) had arrived",
        lane, state_.owner.peer_text(), recovery.reason.message(), stall.count() / 1'000'000,
        (now - recovery.down_at).count() / 1'000'000,
        shares.empty() ? std::string("no path is left for now")
                       : fmt::format("path {} goes on", shares.front().lane),
        counts.chunks_again, counts.bytes_again, counts.chunks_kept, counts.bytes_kept);
  };
  failover_.log(FailoverLog::Kind::failover, lane, text,
                {.stall = stall,
                 .chunks_again = counts.chunks_again,
                 .bytes_again = counts.bytes_again,
                 .chunks_kept = counts.chunks_kept,
                 .bytes_kept = counts.bytes_kept});
  state_.note(TraceEvent::chunks_replayed, lane, counts.chunks_again);
  state_.note(TraceEvent::failover, static_cast<uint64_t>(stall.count()) / 1000, counts.bytes_again,
              lane);
  state_.ask_trace(TraceCause::failover);
}

std::optional<uint32_t> SendRecovery::on_path_made(size_t lane) {
  if (paths_.lane(lane).shadow) {
    static_cast<void>(view());
    detour_.forget(seen_[lane].rank);  // it may have other ends than before
  }
  ha::SenderLane& mine = lanes_[lane].lane;
  mine.reopened();
  return state_.sound(mine) ? std::optional(mine.epoch()) : std::nullopt;
}

}  // namespace nccl_ha
