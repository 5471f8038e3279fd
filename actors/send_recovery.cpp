// The connecting side when a path fails: fence, settle what arrived, make a new path.
#include <fmt/format.h>

#include <algorithm>

#include "actors/send_connection.h"
#include "runtime/log.h"

namespace nccl_ha {
namespace {

/// How long a message may wait for its confirmation before another way is tried.
constexpr Duration unconfirmed_limit = std::chrono::milliseconds(250);

/// How long an attempt to replace a path waits at most while there is none.
constexpr Duration reopen_interval = std::chrono::seconds(1);

/// How often a shadow of another fabric gives way to a look for one of the own.
constexpr Duration better_interval = std::chrono::minutes(5);

}  // namespace

/// What became of the chunks that a fenced lane held.
struct SendConnection::ReportCounts {
  uint32_t chunks_again = 0;
  uint64_t bytes_again = 0;
  uint32_t chunks_kept = 0;
  uint64_t bytes_kept = 0;
};

void SendConnection::begin_recovery() {
  if (!backup_) {
    return;
  }
  add_shadow_lanes();
  recovery_.resize(lanes_.size());
  failback_ = ha::Failback(std::chrono::milliseconds(context_->config().failback_ms));
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Recovery& one = recovery_[i];
    if (lanes_[i].shadow) {
      // The other host may have nothing at that end: tried for ever, but not often.
      one.lane = ha::SenderLane(ha::SenderLane::State::down);
      one.backoff = ha::Backoff(std::chrono::milliseconds(100), std::chrono::seconds(30));
    } else {
      static_cast<void>(one.lane.on_ready());
    }
  }
  start_heartbeats();
  if (peer_ready_ || ha::mutated(ha::Mutation::shadow_not_agreed)) {
    make_shadows();
  } else {
    watch_stream();
  }
}

void SendConnection::on_confirm() {
  if (!std::exchange(peer_ready_, true) && ready_) {
    make_shadows();
  }
}

/// Both sides are ready: what the first transfer did not need can be made.
void SendConnection::make_shadows() {
  if (backs_with_others()) {
    context_->timers().arm(better_timer_, context_->now() + better_interval);
  }
  for (size_t i = primaries_; i < lanes_.size(); ++i) {
    reopen_soon(i);
  }
}

void SendConnection::on_lane_ready(size_t lane) {
  take_steps(lane, recovery_[lane].lane.on_ready(), {});
}

void SendConnection::on_lane_failed(size_t lane, const Error& error) {
  take_steps(lane, recovery_[lane].lane.on_failed(), error);
}

void SendConnection::on_lane_drained(size_t lane) {
  if (!recovery_.empty()) {
    take_steps(lane, recovery_[lane].lane.on_drained(), {});
  }
}

void SendConnection::on_path_message(const ControlReader::Message& message) {
  if (message.type == ControlType::fenced) {
    on_fenced(message.payload);
    return;
  }
  if (message.type == ControlType::rebuilt) {
    on_rebuilt(message.payload);
    return;
  }
  if (const auto notice = decode_notice(message.payload); is_of_ours(notice)) {
    Lane& lane = lanes_[notice->path];
    if (notice->rejected && lane.shadow &&
        (notice->epoch == lane.epoch || ha::mutated(ha::Mutation::rejection_out_of_date))) {
      lane.rejected = true;
      reject_end(notice->path, ha::ShadowCandidates::End::remote, notice->why);
    }
    take_steps(notice->path, recovery_[notice->path].lane.on_suspect(notice->epoch),
               from_peer(notice->why));
  }
}

void SendConnection::on_fenced(std::span<const std::byte> payload) {
  if (auto report = decode_report(payload); is_of_ours(report)) {
    Recovery& recovery = recovery_[report->path];
    if (!ha::mutated(ha::Mutation::first_report_kept) || report->epoch == 0) {
      recovery.report = std::move(report->arrived);
    }
    take_steps(report->path, recovery.lane.on_fenced(report->epoch), {});
  }
}

void SendConnection::on_rebuilt(std::span<const std::byte> payload) {
  const auto offer = decode_offer(payload);
  if (!is_of_ours(offer)) {
    return;
  }
  const size_t lane = offer->path;
  const ha::SenderSteps steps = recovery_[lane].lane.on_rebuilt(offer->epoch);
  if (steps.connect) {
    if (auto connected = connect_path(lanes_[lane], offer->end, offer->table_key); !connected) {
      on_lane_failed(lane, connected.error());
    }
    return;
  }
  take_steps(lane, steps, {});
}

void SendConnection::take_steps(size_t lane, const ha::SenderSteps& steps, const Error& why) {
  Recovery& recovery = recovery_[lane];
  Lane& mine = lanes_[lane];
  if (steps.protocol_error) {
    fail_connection(fail(Errc::remote, "the peer's messages about a path make no sense"));
    return;
  }
  if (steps.take_down) {
    bool spent = false;
    recovery.reason = why;
    if (mine.usable) {
      // A lane that nobody needed has failed nobody.
      const bool needed = serves(lane);
      const bool carried = mine.health.life() != recovery.life_before;
      recovery.was_used = true;
      recovery.alive_at = mine.health.alive_at();
      recovery.down_at = context_->now();
      spent = !mine.rejected && !budget_.on_failed(carried, needed);
      if (carried) {
        recovery.backoff.reset();  // else it comes up and fails in a loop: less and less often
      }
      if (is_fallback(mine)) {
        candidates_.begin_anew();  // the better ones may have come back meanwhile
      }
    } else if (mine.shadow && !mine.rejected) {
      candidates_.pass_over();
    }
    if (mine.rejected) {
      recovery.backoff.reset();  // it says nothing of the next one
    }
    take_down(lane, why);
    hasten();
    arm_reopen();
    if (cursor_.request != nullptr && cursor_.offset != 0 &&
        cursor_.request->ledger.holder(cursor_.chunk) == lane &&
        !ha::mutated(ha::Mutation::half_posted_goes_on)) {
      // Begun there: nobody else may write it before the fence, so it goes with the others.
      cursor_.offset = 0;
      if (++cursor_.chunk == cursor_.end) {
        cursor_.request = nullptr;
      }
    }
    if (spent) {
      fail_connection(
          fail(Errc::remote, fmt::format("paths came up and failed again {} times in a row without "
                                         "carrying anything (HA_NCCL_MAX_RETRIES); the last: {}",
                                         budget_.failures(), why.message())));
      return;
    }
    look_whether_drained(lane);  // perhaps nothing was posted any more
  }
  if (steps.say_down) {
    send_control(encode(ControlType::down, notice_of(lane, recovery.reason)));
    context_->request_stream_turns(1000);
  }
  if (steps.apply_report) {
    apply_report(lane);
  }
  if (steps.reopen && !failed_) {
    reopen_soon(lane);
  }
  if (steps.use) {
    take_into_use(lane);
    recovery.life_before = mine.health.life();
    recovery.usable_since = context_->now();
    log_back(lane);
  }
  choose_lanes();
  watch_budget(!any_usable() ||
               std::any_of(recovery_.begin(), recovery_.end(), [](const Recovery& one) {
                 return one.lane.state() == ha::SenderLane::State::fencing;
               }));
  if (waits_for_peer()) {
    watch_stream();
  }
  pump();
}

/// Moves traffic if it is better off elsewhere (ha::Failback).
void SendConnection::choose_lanes() {
  if (failed_) {
    return;
  }
  ha::Failback::View view;
  view.primary = primary_usable();
  view.shadow = any_usable(primaries_, lanes_.size());
  view.wanted = context_->config().enable_failback || is_fallback(lanes_[serving_begin_]);
  view.between = cursor_.request == nullptr || cursor_.offset == 0 ||
                 ha::mutated(ha::Mutation::moved_within_a_chunk);
  view.whole_since = primaries_whole_since();
  switch (failback_.look(view, context_->now())) {
    case ha::Failback::Step::stay:
      break;
    case ha::Failback::Step::move:
      move_traffic();
      break;
    case ha::Failback::Step::later:
      context_->timers().cancel(failback_timer_);
      context_->timers().arm(failback_timer_, failback_.look_at());
      break;
  }
}

/// To the shadow, or from there to the primaries.  Something of theirs is usable.
void SendConnection::move_traffic() {
  const bool to_shadow = failback_.on_shadow();
  serving_begin_ = to_shadow ? primaries_ : 0;
  serving_end_ = to_shadow ? lanes_.size() : primaries_;
  next_lane_ = serving_begin_;
  static_cast<void>(lanes_[next_lane_].usable || pick_lane());
  FailoverCounts::add(channel_->failovers.moves, 1);
  NHA_LOG_WARN("traffic to {} moved {} path {}: {}", peer_text(),
               to_shadow ? "to the shadow" : "back to", next_lane_,
               lanes_[next_lane_].path().describe());
  context_->recorder().note(TraceEvent::traffic_moved, id().index, next_lane_, to_shadow ? 1 : 0);
}

/// Since when all primaries work; nothing if one does not.
std::optional<Instant> SendConnection::primaries_whole_since() const {
  Instant since{};
  for (size_t i = 0; i < primaries_; ++i) {
    if (!lanes_[i].usable) {
      return std::nullopt;
    }
    since = std::max(since, recovery_[i].usable_since);
  }
  return since;
}

/// What the lane held and the peer did not get goes again; the rest counts as acknowledged.
void SendConnection::apply_report(size_t lane) {
  Recovery& recovery = recovery_[lane];
  if (acknowledged_.contradicts(static_cast<uint8_t>(lane), recovery.report)) {
    fail_connection(fail(Errc::remote,
                         "the peer's NIC failed between acknowledging data and writing it to "
                         "memory; what was to be sent may have changed since"));
    return;
  }
  ReportCounts counts;
  for (uint16_t index = 0; index < sends_max; ++index) {
    SendRequest& request = channel_->slot(index);
    if (request.state.load(std::memory_order_acquire) != RequestState::pending) {
      continue;
    }
    for (uint32_t chunk = 0; chunk < request.split.count() && request.ledger.open() != 0; ++chunk) {
      if (request.ledger.holder(chunk) != lane) {
        continue;
      }
      if (!recovery.report.covers(request.group)) {
        fail_connection(fail(Errc::remote, "the peer's report of a fence leaves groups out"));
        return;
      }
      const uint32_t bytes = request.split.bytes(chunk);
      if (!recovery.report.has(request.group, request.position, chunk)) {
        request.ledger.take_back(chunk);
        replay_.push_back({index, static_cast<uint8_t>(chunk)});
        ++counts.chunks_again;
        counts.bytes_again += bytes;
        continue;
      }
      ++counts.chunks_kept;
      counts.bytes_kept += bytes;
      if (ha::mutated(ha::Mutation::arrived_is_forgotten)) {
        continue;
      }
      if (request.ledger.acknowledge(chunk)) {
        request.state.store(RequestState::done, std::memory_order_release);
      }
    }
  }
  FailoverCounts::add(channel_->failovers.chunks_again, counts.chunks_again);
  FailoverCounts::add(channel_->failovers.bytes_again, counts.bytes_again);
  FailoverCounts::add(channel_->failovers.chunks_kept, counts.chunks_kept);
  tell_failover(lane, counts);
}

/// The one line about a path that was in use and failed.
void SendConnection::tell_failover(size_t lane, const ReportCounts& counts) {
  Recovery& recovery = recovery_[lane];
  if (!std::exchange(recovery.was_used, false)) {
    return;
  }
  const Instant now = context_->now();
  const Duration stall = now - recovery.alive_at;
  const auto next = std::find_if(lanes_.begin() + static_cast<ptrdiff_t>(serving_begin_),
                                 lanes_.begin() + static_cast<ptrdiff_t>(serving_end_),
                                 [](const Lane& one) { return one.usable; });
  const bool none = next == lanes_.begin() + static_cast<ptrdiff_t>(serving_end_);
  NHA_LOG_WARN(
      "failover of path {} to {}: {}; {} ms after its last heartbeat, {} ms after it was given "
      "up, {}; {} chunks ({} bytes) go again, {} ({} bytes) had arrived",
      lane, peer_text(), recovery.reason.message(), stall.count() / 1'000'000,
      (now - recovery.down_at).count() / 1'000'000,
      none ? std::string("no path is left for now")
           : fmt::format("path {} goes on", next - lanes_.begin()),
      counts.chunks_again, counts.bytes_again, counts.chunks_kept, counts.bytes_kept);
  context_->recorder().note(TraceEvent::chunks_replayed, id().index, lane, counts.chunks_again);
  context_->recorder().note(TraceEvent::failover, id().index,
                            static_cast<uint64_t>(stall.count()) / 1000, counts.bytes_again);
}

void SendConnection::reopen_soon(size_t lane) {
  Recovery& recovery = recovery_[lane];
  recovery.reopen_at = context_->now() + recovery.backoff.next(context_->random());
  hasten();
  arm_reopen();
}

/// A shadow is tried seldom, but not when there is nothing else.
void SendConnection::hasten() {
  for (Recovery& one : recovery_) {
    if (one.reopen_at && !any_usable()) {
      one.reopen_at = std::min(*one.reopen_at, context_->now() + reopen_interval);
    }
  }
}

/// What waits for that interface is tried at once.
void SendConnection::on_link_up(const std::string& interface) {
  for (size_t lane = 0; lane < recovery_.size() && !failed_ && !finished_; ++lane) {
    if (recovery_[lane].reopen_at && interface_of(lanes_[lane]) == interface) {
      recovery_[lane].reopen_at = context_->now();
      arm_reopen();
    }
  }
  Connection::on_link_up(interface);
}

/// An RDMA port that could be the shadow instead may be there by now.
void SendConnection::look_for_better() {
  if (failed_ || finished_) {
    return;
  }
  context_->timers().arm(better_timer_, context_->now() + better_interval);
  for (size_t lane = primaries_; lane < lanes_.size() && !failed_ && !finished_; ++lane) {
    if (lanes_[lane].usable && is_fallback(lanes_[lane]) && primary_usable()) {
      on_lane_failed(lane, fail(Errc::again, "it is looked whether RDMA could stand by again"));
    }
  }
}

void SendConnection::arm_reopen() {
  std::optional<Instant> first;
  for (const Recovery& one : recovery_) {
    if (one.reopen_at && (!first || *one.reopen_at < *first)) {
      first = one.reopen_at;
    }
  }
  context_->timers().cancel(reopen_timer_);
  if (first) {
    context_->timers().arm(reopen_timer_, *first);
  }
}

// A timer of its own, because a path must not be destroyed while it reports.
void SendConnection::reopen_due() {
  const Instant now = context_->now();
  for (size_t lane = 0; lane < recovery_.size() && !failed_ && !finished_; ++lane) {
    if (recovery_[lane].reopen_at && *recovery_[lane].reopen_at <= now) {
      recovery_[lane].reopen_at.reset();
      reopen(lane);
    }
  }
  if (!failed_ && !finished_) {
    arm_reopen();
  }
}

void SendConnection::reopen(size_t lane) {
  Lane& mine = lanes_[lane];
  PathOffer offer;
  if (mine.shadow) {
    const auto pair = candidates_.choose(context_->now());
    if (!pair) {
      recovery_[lane].reopen_at = candidates_.next_at();
      return;
    }
    recovery_[lane].pair = *pair;
    const fabric::Place& place = places_[pair->local];
    mine.at = place.at;
    static_cast<void>(place.address.to_sockaddr(0, &mine.local));
    offer.rail = static_cast<uint8_t>(pair->remote);
  }
  if (auto made = remake_path(mine, true); !made) {
    NHA_LOG_DEBUG("path {} to {} cannot be made yet: {}", lane, peer_text(),
                  made.error().message());
    mine.owned.reset();
    if (mine.rejected) {
      reject_end(lane, ha::ShadowCandidates::End::local, made.error().message());
      recovery_[lane].backoff.reset();
    } else if (mine.shadow) {
      tell_shortage(made.error());
      candidates_.pass_over();
    }
    reopen_soon(lane);
    return;
  }
  recovery_[lane].lane.reopened();
  mine.epoch = recovery_[lane].lane.epoch();
  offer.path = static_cast<uint8_t>(lane);
  offer.epoch = mine.epoch;
  offer.table_key = mine.tables.written_key;
  offer.end = path_end(mine);
  send_control(encode(ControlType::rebuild, offer));
  context_->request_stream_turns(1000);
}

/// The pairs with that end of the lane are left alone for a while.
void SendConnection::reject_end(size_t lane, ha::ShadowCandidates::End end,
                                const std::string& why) {
  const bool here = end == ha::ShadowCandidates::End::local;
  const ha::RailPair& pair = recovery_[lane].pair;
  if (here) {
    FailoverCounts::add(channel_->failovers.rejected, 1);
  }
  if (candidates_.reject(end, here ? pair.local : pair.remote, context_->now())) {
    NHA_LOG_WARN("path {} to {} cannot take over through a device {}, another one is tried: {}",
                 lane, peer_text(), here ? "of this host" : "of the peer", why);
  }
}

void SendConnection::watch_stream() {
  if (rejoin_.possible() && !rejoin_.running() && !stream_timer_.armed() && !failed_ &&
      !finished_) {
    unconfirmed_ = sequencer_.first_open();
    heard_ = sequencer_.expected();
    context_->timers().arm(stream_timer_, context_->now() + unconfirmed_limit);
  }
}

/// Something has to come over the stream: that the peer is ready, a confirmation, or the answer to
/// what was confirmed.
bool SendConnection::waits_for_peer() const {
  return !peer_ready_ || any_unconfirmed() ||
         std::any_of(recovery_.begin(), recovery_.end(),
                     [](const Recovery& one) { return one.lane.waits_for_peer(); });
}

void SendConnection::on_unconfirmed() {
  watch_stream();
  rejoin_.write(sequencer_.frame(sequencer_.next() - 1));
}

void SendConnection::on_stream_lost(const Error& why) {
  context_->timers().cancel(stream_timer_);
  rejoin_.start(Duration(0), why);
}

void SendConnection::on_stream_back() {
  context_->timers().cancel(stream_timer_);
  if (waits_for_peer()) {
    watch_stream();
  }
}

/// The network under the stream may be the one that failed, while the peer can be reached
/// elsewhere.
void SendConnection::look_after_stream() {
  if (failed_ || finished_) {
    return;
  }
  const bool moves = sequencer_.first_open() != unconfirmed_ || sequencer_.expected() != heard_;
  // Over a path that works everything gets through; one that is silent is asked.
  if (stream_ && (!waits_for_peer() || moves || any_usable())) {
    if (waits_for_peer()) {
      probe_usable();
      watch_stream();
    }
    return;
  }
  rejoin_.start(Duration(0), fail(Errc::timed_out, "what the peer should say does not come"));
}

/// The routes, that over which the stream was made first.
std::vector<Rejoin::Way> SendConnection::rejoin_ways(const RejoinPoint& peer) const {
  std::vector<Rejoin::Way> ways;
  for (size_t i = 0; i < options_.routes.size(); ++i) {
    const size_t at = (route_ + i) % options_.routes.size();
    const Route& route = options_.routes[at];
    ways.push_back({route.to, route.from, at == route_ && Rejoin::leads_to(peer, route.to)});
  }
  return ways;
}

}  // namespace nccl_ha
