#include "actors/connection/send_recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ha/mutation.h"
#include "runtime/base/log.h"

namespace nccl_ha {
namespace {

/// How long an attempt to replace a path waits at most while there is none.
constexpr Duration reopen_interval = std::chrono::seconds(1);

/// How often a shadow of another fabric gives way to a look for one of the own.
constexpr Duration better_interval = std::chrono::minutes(5);

/// A path over another rail is tried this often at most.
constexpr Duration rail_interval = std::chrono::seconds(2);

}  // namespace

SendRecovery::SendRecovery(const ConnectionParts& parts, Sender& sender, Owner& owner)
    : parts_(parts),
      state_(parts.state),
      paths_(parts.paths),
      failover_(parts.failover),
      sender_(sender),
      owner_(owner) {
  reopen_timer_.bind([](void* self) { static_cast<SendRecovery*>(self)->on_reopen_timer(); }, this);
  better_timer_.bind([](void* self) { static_cast<SendRecovery*>(self)->look_for_better(); }, this);
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
  if (state_.context != nullptr) {
    state_.context->timers().cancel(reopen_timer_);
    state_.context->timers().cancel(failback_timer_);
    state_.context->timers().cancel(slow_timer_);
    state_.context->timers().cancel(better_timer_);
  }
}

void SendRecovery::begin() {
  serving_ = ha::ServingSet(std::chrono::milliseconds(state_.context->config().failback_ms));
  lanes_.resize(paths_.size());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Recovery& one = lanes_[i];
    if (paths_.lane(i).on_other_rail()) {
      one.lane = ha::SenderLane(ha::SenderLane::State::down);
      one.backoff = ha::Backoff(std::chrono::milliseconds(20), rail_interval);
    } else if (paths_.lane(i).shadow) {
      // The other host may have nothing at that end: tried for ever, but not often.
      one.lane = ha::SenderLane(ha::SenderLane::State::down);
      one.backoff = ha::Backoff(std::chrono::milliseconds(100), std::chrono::seconds(30));
    } else {
      static_cast<void>(one.lane.on_ready());
    }
  }
  choose_lanes();
}

void SendRecovery::make_others() {
  if (paths_.backs_with_others()) {
    state_.context->timers().arm(better_timer_, state_.context->now() + better_interval);
  }
  for (size_t i = paths_.primaries(); i < paths_.own(); ++i) {
    lanes_[i].reopen_at = state_.context->now();  // the caller waits for those
  }
  for (size_t i = paths_.own(); i < paths_.size(); ++i) {
    reopen_soon(i);
  }
  arm_reopen();
}

void SendRecovery::on_lane_ready(size_t lane) {
  take_steps(lane, lanes_[lane].lane.on_ready(), {});
}

void SendRecovery::on_lane_failed(size_t lane, const Error& error) {
  if (std::exchange(lanes_[lane].unoffered, false)) {
    give_up_new_path(lane, error);  // the peer has not heard of it
    return;
  }
  take_steps(lane, lanes_[lane].lane.on_failed(), error);
}

void SendRecovery::on_lane_drained(size_t lane) {
  if (!lanes_.empty()) {
    take_steps(lane, lanes_[lane].lane.on_drained(), {});
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
  if (notice->rejected && lane.elsewhere() &&
      (notice->epoch == lane.epoch || ha::mutated(ha::Mutation::rejection_out_of_date))) {
    lane.rejected = true;
    reject_end(notice->path, ha::ShadowCandidates::End::remote, notice->why);
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
  if (!ha::mutated(ha::Mutation::first_report_kept) || report->epoch == 0) {
    recovery.report = std::move(report->arrived);
  }
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
    if (auto connected = paths_.connect(paths_.lane(lane), offer->end, offer->table_key);
        !connected) {
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
  if (steps.say_down) {
    if (!state_.holds(failover_.drained(lane), "down is said when all work has come back")) {
      return;
    }
    state_.note_step(RoundStep::down_said, lane, paths_.lane(lane).epoch);
    parts_.control.send(encode(ControlType::down, failover_.notice_of(lane, recovery.reason)));
    state_.context->request_stream_turns(1000);
  }
  if (steps.apply_report) {
    paths_.lane(lane).counters->fenced.add();
    apply_report(lane);
  }
  if (steps.reopen && state_.live()) {
    reopen_soon(lane);
  }
  if (steps.use) {
    failover_.take_into_use(lane);
    recovery.life_before = paths_.lane(lane).health.life();
    recovery.usable_since = state_.context->now();
    failover_.log_back(lane);
  }
  choose_lanes();
  failover_.watch_budget(!paths_.any_usable() ||
                         std::any_of(lanes_.begin(), lanes_.end(), [](const Recovery& one) {
                           return one.lane.state() == ha::SenderLane::State::fencing;
                         }));
  owner_.on_steps_taken();
  sender_.pump();
}

void SendRecovery::take_down(size_t lane, const Error& why) {
  Recovery& recovery = lanes_[lane];
  Lane& mine = paths_.lane(lane);
  bool spent = false;
  recovery.reason = why;
  if (mine.usable) {
    // A lane that nobody needed has failed nobody.
    const bool needed = serving_.serves(lane);
    const bool carried = mine.health.life() != recovery.life_before;
    recovery.was_used = true;
    recovery.alive_at = mine.health.alive_at();
    recovery.down_at = state_.context->now();
    spent = !mine.rejected && !failover_.budget().on_failed(carried, needed);
    if (carried) {
      recovery.backoff.reset();  // else it comes up and fails in a loop: less and less often
    }
    if (paths_.is_fallback(mine)) {
      candidates_.begin_anew(mine.shadow_number);  // the better ones may have come back meanwhile
    }
  } else if (mine.shadow && !mine.rejected) {
    candidates_.pass_over(mine.shadow_number);
  }
  if (mine.rejected) {
    recovery.backoff.reset();  // it says nothing of the next one
  }
  failover_.take_down(lane, why);
  hasten();
  arm_reopen();
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
          state_.context->config().enable_failback || ranks.first != 0,
          sender_.between_chunks() || ha::mutated(ha::Mutation::moved_within_a_chunk)};
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

bool SendRecovery::give_way() {
  if (!serving_.give_way(view(), state_.context->now()) || !state_.sound(serving_)) {
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
  NHA_LOG_WARN("traffic to {} moved {} path {}: {}", state_.owner.peer_text(),
               to_shadow              ? "to the shadow"
               : serving_.rank() != 0 ? "to"
                                      : "back to",
               lane, paths_.lane(lane).path().describe());
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
  NHA_LOG_WARN(
      "failover of path {} to {}: {}; {} ms after its last heartbeat, {} ms after it was given "
      "up, {}; {} chunks ({} bytes) go again, {} ({} bytes) had arrived",
      lane, state_.owner.peer_text(), recovery.reason.message(), stall.count() / 1'000'000,
      (now - recovery.down_at).count() / 1'000'000,
      shares.empty() ? std::string("no path is left for now")
                     : fmt::format("path {} goes on", shares.front().lane),
      counts.chunks_again, counts.bytes_again, counts.chunks_kept, counts.bytes_kept);
  state_.note(TraceEvent::chunks_replayed, lane, counts.chunks_again);
  state_.note(TraceEvent::failover, static_cast<uint64_t>(stall.count()) / 1000, counts.bytes_again,
              lane);
  state_.ask_trace(TraceCause::failover);
}

void SendRecovery::reopen_soon(size_t lane) {
  Recovery& recovery = lanes_[lane];
  const Lane& mine = paths_.lane(lane);
  const Duration wait = recovery.backoff.next(state_.context->random());
  // A shadow whose device takes no memory has others to try first; a rail has that one.
  recovery.reopen_at =
      state_.context->now() +
      (mine.rejected && mine.on_other_rail() ? ha::ShadowCandidates::forget_after : wait);
  hasten();
  arm_reopen();
}

/// A shadow is tried seldom, but not when there is nothing else.
void SendRecovery::hasten() {
  for (Recovery& one : lanes_) {
    if (one.reopen_at && !paths_.any_usable()) {
      one.reopen_at = std::min(*one.reopen_at, state_.context->now() + reopen_interval);
    }
  }
}

/// What waits for that is tried at once.
void SendRecovery::on_domain_up(const fabric::FailureDomain& domain) {
  for (size_t lane = 0; lane < lanes_.size() && state_.live(); ++lane) {
    if (lanes_[lane].reopen_at && paths_.is_in(paths_.lane(lane), domain)) {
      lanes_[lane].reopen_at = state_.context->now();
      arm_reopen();
    }
  }
}

/// An RDMA port that could be the shadow instead may be there by now.
void SendRecovery::look_for_better() {
  if (!state_.live()) {
    return;
  }
  state_.context->timers().arm(better_timer_, state_.context->now() + better_interval);
  for (size_t lane = paths_.own(); lane < paths_.size() && state_.live(); ++lane) {
    if (paths_.lane(lane).usable && paths_.is_fallback(paths_.lane(lane)) && paths_.own_usable()) {
      on_lane_failed(lane, fail(Errc::again, "it is looked whether RDMA could stand by again"));
    }
  }
}

void SendRecovery::arm_reopen() {
  std::optional<Instant> first;
  for (const Recovery& one : lanes_) {
    if (one.reopen_at && (!first || *one.reopen_at < *first)) {
      first = one.reopen_at;
    }
  }
  state_.context->timers().cancel(reopen_timer_);
  if (first) {
    state_.context->timers().arm(reopen_timer_, *first);
  }
}

// A timer of its own, because a path must not be destroyed while it reports.
void SendRecovery::on_reopen_timer() {
  const Instant now = state_.context->now();
  for (size_t lane = 0; lane < lanes_.size() && state_.live(); ++lane) {
    if (lanes_[lane].reopen_at && *lanes_[lane].reopen_at <= now) {
      lanes_[lane].reopen_at.reset();
      reopen(lane);
    }
  }
  if (state_.live()) {
    arm_reopen();
  }
}

/// False: there is no pair of ends for a shadow for now.
bool SendRecovery::choose_place(size_t lane) {
  const Instant now = state_.context->now();
  const auto pair = candidates_.choose(paths_.lane(lane).shadow_number, now);
  if (!state_.sound(candidates_)) {
    return false;
  }
  if (!pair) {
    lanes_[lane].reopen_at = candidates_.next_at(now);
    return false;
  }
  lanes_[lane].pair = *pair;
  paths_.move_to(paths_.lane(lane), paths_.places()[pair->local]);
  return true;
}

/// A rail's ends are always the same.
bool SendRecovery::choose_rail_place(size_t lane) {
  Lane& mine = paths_.lane(lane);
  const auto place = paths_.place_of_rail(mine.rail);
  if (!state_.holds(place.has_value(), "a rail that was agreed on has a place")) {
    return false;
  }
  lanes_[lane].pair = {*place, rail_ends_[mine.rail - 1U]};
  paths_.move_to(mine, paths_.places()[*place]);
  return true;
}

void SendRecovery::reopen(size_t lane) {
  Lane& mine = paths_.lane(lane);
  Recovery& recovery = lanes_[lane];
  if (!state_.holds(!mine.usable, "a path that works is not made anew") ||
      (mine.on_other_rail() && !choose_rail_place(lane)) || (mine.shadow && !choose_place(lane))) {
    return;
  }
  if (auto made = paths_.remake(mine); !made) {
    mine.owned.reset();
    give_up_new_path(lane, made.error());
    return;
  }
  sender_.adapt_to(mine);
  recovery.unoffered = true;
  on_lane_address(lane);
}

/// It cannot be made yet.
void SendRecovery::give_up_new_path(size_t lane, const Error& why) {
  Lane& mine = paths_.lane(lane);
  NHA_LOG_DEBUG("path {} to {} cannot be made yet: {}", lane, state_.owner.peer_text(),
                why.message());
  if (mine.rejected) {
    reject_end(lane, ha::ShadowCandidates::End::local, why.message());
    lanes_[lane].backoff.reset();
  } else if (mine.elsewhere()) {
    failover_.tell_shortage(why);
    if (mine.shadow) {
      candidates_.pass_over(mine.shadow_number);
    }
  }
  mine.decided = true;
  reopen_soon(lane);
  state_.owner.on_lane_decided();
}

void SendRecovery::on_lane_address(size_t lane) {
  if (lanes_[lane].unoffered && paths_.lane(lane).path().address_ready()) {
    lanes_[lane].unoffered = false;
    offer(lane);
  }
}

/// Tells the peer of a new path.
void SendRecovery::offer(size_t lane) {
  Lane& mine = paths_.lane(lane);
  Recovery& recovery = lanes_[lane];
  recovery.lane.reopened();
  if (!state_.sound(recovery.lane) ||
      !state_.holds(recovery.lane.epoch() == mine.epoch + 1, "a new path has the next epoch")) {
    return;
  }
  mine.epoch = recovery.lane.epoch();
  PathOffer offer;
  offer.path = static_cast<uint8_t>(lane);
  offer.epoch = mine.epoch;
  offer.rail = static_cast<uint8_t>(mine.elsewhere() ? recovery.pair.remote : 0);
  offer.table_key = mine.tables.written_key;
  offer.end = paths_.end_of(mine);
  state_.note_step(RoundStep::offer_said, lane, mine.epoch);
  parts_.control.send(encode(ControlType::rebuild, offer));
  state_.context->request_stream_turns(1000);
}

void SendRecovery::on_memory_rejected(size_t lane, const Error& why) {
  reject_end(lane, ha::ShadowCandidates::End::local, failover_.reject(lane, why).message());
}

void SendRecovery::on_rail_rejected(uint8_t rail) {
  // A lane whose device here does not take the memory was rejected before, and said so.
  const auto rejected = [&](const Lane& lane) {
    return lane.on_other_rail() && lane.rail == rail && lane.rejected;
  };
  const bool here = std::ranges::any_of(paths_.lanes(), rejected);
  for (size_t at = 0; at < paths_.size(); ++at) {
    const Lane& lane = paths_.lane(at);
    if (lane.on_other_rail() && lane.rail == rail && lane.usable && !lane.rejected) {
      const Error why = fail(Errc::no_memory, here ? "as on another lane of the rail"
                                                   : "the peer tells no key of a receive's");
      reject_end(at, here ? ha::ShadowCandidates::End::local : ha::ShadowCandidates::End::remote,
                 failover_.reject(at, why).message());
    }
  }
}

/// The pairs with that end of the lane are left alone for a while.
void SendRecovery::reject_end(size_t lane, ha::ShadowCandidates::End end, const std::string& why) {
  const bool here = end == ha::ShadowCandidates::End::local;
  const ha::RailPair& pair = lanes_[lane].pair;
  if (here) {
    failover_.count_rejected();
  }
  if (paths_.lane(lane).on_other_rail()) {
    NHA_LOG_WARN_LIMITED(
        "path {} to {} is of no use for now, as a device {} does not take the memory: {}", lane,
        state_.owner.peer_text(), here ? "of this host" : "of the peer", why);
    return;
  }
  const bool first =
      candidates_.reject(end, here ? pair.local : pair.remote, state_.context->now());
  if (state_.sound(candidates_) && first) {
    NHA_LOG_WARN("path {} to {} cannot take over through a device {}, another one is tried: {}",
                 lane, state_.owner.peer_text(), here ? "of this host" : "of the peer", why);
  }
}

}  // namespace nccl_ha
