#include "actors/connection/path_renewal.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/engine/worker.h"

namespace nccl_ha {
namespace {

/// How long an attempt to replace a path waits at most while there is none.
constexpr Duration reopen_interval = std::chrono::seconds(1);

/// A path over another rail is tried this often at most.
constexpr Duration rail_interval = std::chrono::seconds(2);

/// So is a shadow that has stood by before: what it lacks may come back without a word.
constexpr Duration shadow_interval = std::chrono::seconds(5);

/// So much of a worker's time is left between two attempts of a sweep for each of its actors: that
/// of making a path and of the messages about it, many times over.
constexpr Duration sweep_pace = std::chrono::microseconds(500);

}  // namespace

PathRenewal::PathRenewal(Owner& owner, const ConnectionParts& parts, Sender& sender)
    : owner_(owner),
      state_(parts.state),
      paths_(parts.paths),
      control_(parts.control),
      failover_(parts.failover),
      sender_(sender) {
  reopen_timer_.bind([](void* self) { static_cast<PathRenewal*>(self)->on_reopen_timer(); }, this);
  better_timer_.bind([](void* self) { static_cast<PathRenewal*>(self)->look_for_better(); }, this);
}

void PathRenewal::stop() {
  if (state_.context != nullptr) {
    state_.context->timers().cancel(reopen_timer_);
    state_.context->timers().cancel(better_timer_);
  }
}

void PathRenewal::begin() {
  lanes_.resize(paths_.size());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (paths_.lane(i).on_other_rail()) {
      lanes_[i].backoff = ha::Backoff(std::chrono::milliseconds(20), rail_interval);
    } else if (paths_.lane(i).shadow) {
      // The other host may have nothing at that end: tried for ever, but not often.
      lanes_[i].backoff = ha::Backoff(std::chrono::milliseconds(100), std::chrono::seconds(30));
    }
  }
}

void PathRenewal::make_others() {
  if (paths_.backs_with_others()) {
    look_in(better_interval);
  }
  for (size_t i = paths_.primaries(); i < paths_.own(); ++i) {
    lanes_[i].reopen_at = state_.context->now();  // the caller waits for those
  }
  for (size_t i = paths_.own(); i < paths_.size(); ++i) {
    reopen_soon(i);
  }
  arm_reopen();
}

void PathRenewal::on_lane_up(size_t lane) {
  Next& next = lanes_[lane];
  const Lane& mine = paths_.lane(lane);
  next.link_back = next.turned = next.again = next.looks = urgent_ = false;
  next.give_up_at.reset();
  if (could_be_better(lane)) {
    look_in(better_wait_);
    better_wait_ = std::min(2 * better_wait_, better_interval);
  } else {
    next.news_wait = better_first;
  }
  if (mine.shadow) {
    for (Next& other : lanes_) {  // what this one tried before is theirs
      other.reopen_at = other.idle ? state_.context->now() : other.reopen_at;
    }
    arm_reopen();
  }
  // One of another fabric does not come before those of the own one.
  if (mine.shadow && candidates_.worked(mine.shadow_number, !paths_.is_fallback(mine))) {
    next.backoff = ha::Backoff(std::chrono::milliseconds(100), shadow_interval);
  }
}

void PathRenewal::on_lane_down(size_t lane, bool carried) {
  const Lane& mine = paths_.lane(lane);
  if (mine.usable) {
    if (carried) {
      lanes_[lane].backoff.reset();  // else it comes up and fails in a loop: less and less often
    }
    if (could_be_better(lane)) {
      candidates_.begin_anew(mine.shadow_number);  // the better ones may have come back meanwhile
    }
    if (mine.shadow) {
      candidates_.ended(mine.shadow_number);
    }
  } else if (mine.shadow && !mine.rejected) {
    pass_over(lane);
  }
  if (mine.rejected) {
    lanes_[lane].backoff.reset();  // it says nothing of the next one
    lanes_[lane].link_back = false;
  }
}

bool PathRenewal::fail_unoffered(size_t lane, const Error& why) {
  if (!std::exchange(lanes_[lane].unoffered, false)) {
    return false;
  }
  PathSet::note_refusal(paths_.lane(lane), why);
  give_up_new_path(lane, why);
  return true;
}

void PathRenewal::reopen_soon(size_t lane) {
  Next& next = lanes_[lane];
  const Lane& mine = paths_.lane(lane);
  const Duration wait = wait_of(lane);
  // A shadow whose device takes no memory has others to try first; a rail has that one.
  next.reopen_at =
      state_.context->now() +
      (mine.rejected && mine.on_other_rail() ? ha::ShadowCandidates::forget_after : wait);
  hasten();
}

/// Within a sweep the next pair follows at once, but for what all connections of the worker need.
Duration PathRenewal::wait_of(size_t lane) {
  Next& next = lanes_[lane];
  Random& random = state_.context->random();
  const bool passed = std::exchange(next.passed, false);
  if (!passed || !candidates_.sweeps_on(paths_.lane(lane).shadow_number, state_.context->now(),
                                        !paths_.any_usable())) {
    next.looks = next.looks && !passed;
    return next.backoff.next(random);
  }
  const size_t others =
      std::max<size_t>(state_.context->worker().actor_count(), 2) - 1;  // the door
  const auto pace = static_cast<uint64_t>(sweep_pace.count()) * others;
  return Duration(pace / 2 + random.below(pace));
}

/// What a shadow tries at length, or waits for, is for times when there is a path.
void PathRenewal::sweep_anew() {
  const Instant now = state_.context->now();
  for (size_t i = paths_.own(); i < lanes_.size(); ++i) {
    Next& next = lanes_[i];
    candidates_.begin_sweeps(paths_.lane(i).shadow_number);
    next.looks = false;
    if (next.reopen_at) {
      next.reopen_at = now;
    }
    if (!next.link_back && (next.unoffered || owner_.is_opening(i))) {
      next.give_up_at = now + ha::Sweep::attempt_max;
    }
  }
}

void PathRenewal::give_up_long_attempts() {
  for (size_t i = 0; i < lanes_.size() && state_.live(); ++i) {
    if (lanes_[i].give_up_at && *lanes_[i].give_up_at <= state_.context->now()) {
      lanes_[i].give_up_at.reset();
      if (lanes_[i].unoffered || owner_.is_opening(i)) {
        owner_.on_lane_failed(i, fail(Errc::again, "no path is left, and other NICs are tried"));
      }
    }
  }
}

/// A shadow is tried seldom, but not when there is nothing else.
void PathRenewal::hasten() {
  if (!paths_.any_usable() && !std::exchange(urgent_, true)) {
    sweep_anew();
  }
  for (Next& one : lanes_) {
    if (one.reopen_at && !paths_.any_usable()) {
      one.reopen_at = std::min(*one.reopen_at, state_.context->now() + reopen_interval);
    }
  }
  arm_reopen();
}

void PathRenewal::renew(std::vector<ha::RailPair> ranked, std::span<const ha::Rail> rails, End end,
                        const std::vector<size_t>& changed) {
  if (changed.empty()) {
    return;
  }
  candidates_.renew(std::move(ranked));
  set_ends(rails);
  const std::vector<ha::Rail> own = paths_.rails();
  const std::span<const ha::Rail> there =
      end == End::local ? std::span<const ha::Rail>(own) : rails;
  for (const size_t place : changed) {
    if (there[place].returned()) {
      candidates_.forgive(end, ha::nic_of(there, place));
    }
  }
  const auto is_new = [&](const ha::RailPair& pair) {
    const size_t place = end == End::local ? pair.local : pair.remote;
    return std::ranges::find(changed, place) != changed.end();
  };
  better_wait_ = better_soon;
  for (size_t lane = 0; lane < lanes_.size() && state_.live(); ++lane) {
    Next& next = lanes_[lane];
    bool under_way = next.unoffered || owner_.is_opening(lane);
    if (under_way && ends_at(lane, end, changed)) {
      next.turned = true;  // says nothing of the new address
      owner_.on_lane_failed(lane, fail(Errc::again, "an address of its ends has changed"));
      under_way = false;
    }
    if (!paths_.lane(lane).usable) {
      next.backoff.reset();
      if (next.reopen_at) {
        next.reopen_at = state_.context->now();
      }
    }
    if ((paths_.lane(lane).usable || under_way) && could_be_better(lane, is_new)) {
      look(lane, "a NIC of its own could stand by now");
    }
  }
  arm_reopen();
}

bool PathRenewal::ends_at(size_t lane, End end, const std::vector<size_t>& places) const {
  const bool here = end == End::local;
  return std::ranges::any_of(places, [&](size_t place) {
    if (!paths_.lane(lane).elsewhere()) {
      return here ? paths_.is_primary(place) : place == first_end_;
    }
    return place == (here ? lanes_[lane].pair.local : lanes_[lane].pair.remote);
  });
}

void PathRenewal::on_domain_up(const fabric::FailureDomain& domain) {
  // Of the own fabric: for another one nothing is given up.
  std::vector<size_t> back;
  const bool nic = domain.kind == fabric::FailureDomain::Kind::local_nic;
  for (size_t i = 0; nic && i < paths_.places().size(); ++i) {
    const fabric::Place& place = paths_.places()[i];
    if (place.at.kind == state_.attachment.kind && paths_.interface_of(place) == domain.name) {
      back.push_back(i);
    }
  }
  for (size_t lane = 0; lane < lanes_.size() && state_.live(); ++lane) {
    const Lane& mine = paths_.lane(lane);
    if (mine.shadow && !back.empty()) {
      heed(lane, End::local, back);
    } else if (!mine.usable && paths_.is_in(mine, domain)) {
      try_at_once(lane);
    }
  }
}

void PathRenewal::on_link_back(std::span<const std::byte> payload) {
  const auto notice = decode_link_back(payload);
  if (!notice) {
    state_.fail(fail(Errc::remote, "malformed message about a link on the control stream"));
    return;
  }
  for (size_t lane = 0; lane < lanes_.size() && state_.live(); ++lane) {
    const Lane& mine = paths_.lane(lane);
    if (notice->rail >= end_nics_.size()) {
      return;
    }
    const size_t nic = end_nics_[notice->rail];
    const size_t end = mine.elsewhere() ? lanes_[lane].pair.remote : first_end_;
    if (mine.shadow && own_ends_[notice->rail]) {
      heed(lane, End::remote, {nic});
    } else if (!mine.usable && end < end_nics_.size() && end_nics_[end] == nic) {
      try_at_once(lane);
    }
  }
}

/// A shadow takes the ends whose links are back; an attempt over others is given up for them.
void PathRenewal::turn(size_t lane, End end, const std::vector<size_t>& back) {
  using Turn = ha::ShadowCandidates::Turn;
  Next& next = lanes_[lane];
  if (next.looks) {
    take_news(lane);
    return;
  }
  better_wait_ = better_soon;  // should it come up over another pair meanwhile
  const bool under_way = next.unoffered || owner_.is_opening(lane);
  const Turn turn = candidates_.turn_to(
      paths_.lane(lane).shadow_number, end,
      [&](size_t place) { return std::ranges::find(back, place) != back.end(); },
      state_.context->now(), under_way, next.link_back);
  if (turn == Turn::none) {
    return;
  }
  try_at_once(lane);
  if (turn == Turn::instead) {
    next.turned = true;
    next.again = false;
    owner_.on_lane_failed(lane, fail(Errc::again, "another NIC has its link again"));
  }
  give_up_lost();
}

/// Attempts over ends that another shadow has taken.
void PathRenewal::give_up_lost() {
  for (size_t i = paths_.own(); i < lanes_.size() && state_.live(); ++i) {
    if (!candidates_.lost(paths_.lane(i).shadow_number)) {
      continue;
    }
    if (!state_.holds(!paths_.lane(i).usable, "a shadow that works keeps its NICs")) {
      return;
    }
    if (lanes_[i].unoffered || owner_.is_opening(i)) {
      owner_.on_lane_failed(i, fail(Errc::again, "another path takes its NIC"));
    }
  }
}

/// An attempt that is under way goes on; should it fail nevertheless, it began too early.
void PathRenewal::try_at_once(size_t lane) {
  Next& next = lanes_[lane];
  next.backoff.reset();
  next.link_back = true;
  if (next.reopen_at) {
    next.reopen_at = state_.context->now();
    arm_reopen();
  }
}

/// The next pair of ends is tried.  The same once more where its link came back while it was being
/// tried; not while the connection has no path, and another pair may have one, unless the attempt
/// was a short one.
void PathRenewal::pass_over(size_t lane) {
  Next& next = lanes_[lane];
  if (std::exchange(next.turned, false)) {
    return;  // it is at hand already
  }
  next.passed = true;
  next.again = std::exchange(next.link_back, false) && !next.again &&
               (paths_.any_usable() || next.limit < ha::ShadowCandidates::longest_attempt);
  const size_t shadow = paths_.lane(lane).shadow_number;
  if (next.again) {
    candidates_.repeat(shadow);
  } else {
    candidates_.pass_over(shadow, !paths_.any_usable());
  }
}

void PathRenewal::arm_reopen() {
  std::optional<Instant> first;
  for (const Next& one : lanes_) {
    for (const auto& due : {one.reopen_at, one.give_up_at}) {
      first = due && (!first || *due < *first) ? due : first;
    }
  }
  state_.context->timers().cancel(reopen_timer_);
  if (first) {
    state_.context->timers().arm(reopen_timer_, *first);
  }
}

// A timer of its own, because a path must not be destroyed while it reports.
void PathRenewal::on_reopen_timer() {
  const Instant now = state_.context->now();
  for (size_t lane = 0; lane < lanes_.size() && state_.live(); ++lane) {
    if (lanes_[lane].reopen_at && *lanes_[lane].reopen_at <= now) {
      lanes_[lane].reopen_at.reset();
      reopen(lane);
    }
  }
  give_up_long_attempts();
  if (state_.live()) {
    arm_reopen();
  }
}

/// False: there is no pair of ends for a shadow for now, or the connection has failed.
bool PathRenewal::choose_place(size_t lane) {
  const Instant now = state_.context->now();
  const auto pair = candidates_.choose(paths_.lane(lane).shadow_number, now);
  if (!state_.sound(candidates_)) {
    return false;
  }
  lanes_[lane].idle = !pair;
  if (!pair) {
    lanes_[lane].reopen_at = candidates_.next_at(now);
    lanes_[lane].looks = false;
    return false;
  }
  lanes_[lane].pair = *pair;
  paths_.move_to(paths_.lane(lane), paths_.places()[pair->local]);
  give_up_lost();
  return state_.live();
}

/// A rail's ends are always the same.
bool PathRenewal::choose_rail_place(size_t lane) {
  Lane& mine = paths_.lane(lane);
  const auto place = paths_.place_of_rail(mine.rail);
  if (!state_.holds(place.has_value(), "a rail that was agreed on has a place")) {
    return false;
  }
  lanes_[lane].pair = {*place, rail_ends_[mine.rail - 1U]};
  paths_.move_to(mine, paths_.places()[*place]);
  return true;
}

/// Where a link came back, or may be about to, all that an attempt may need.
Duration PathRenewal::limit_of(size_t lane) const {
  const Next& next = lanes_[lane];
  const Lane& mine = paths_.lane(lane);
  return mine.shadow && !next.link_back && !next.again ? candidates_.limit(mine.shadow_number)
                                                       : ha::ShadowCandidates::longest_attempt;
}

void PathRenewal::reopen(size_t lane) {
  Lane& mine = paths_.lane(lane);
  Next& next = lanes_[lane];
  if (!mine.shadow && paths_.is_over(mine)) {
    return;  // what has come in its device's place serves shadows
  }
  if (!state_.holds(!mine.usable, "a path that works is not made anew") ||
      (mine.on_other_rail() && !choose_rail_place(lane)) || (mine.shadow && !choose_place(lane))) {
    return;
  }
  next.limit = limit_of(lane);
  next.give_up_at.reset();
  if (auto made = paths_.make(mine, next.limit); !made) {
    mine.owned.reset();
    give_up_new_path(lane, made.error());
    return;
  }
  sender_.adapt_to(mine);
  next.unoffered = true;
  on_lane_address(lane);
}

/// It cannot be made yet.
void PathRenewal::give_up_new_path(size_t lane, const Error& why) {
  Lane& mine = paths_.lane(lane);
  NHA_LOG_DEBUG("path {} to {} cannot be made yet: {}", lane, state_.owner.peer_text(),
                why.message());
  if (mine.rejected) {
    reject_end(lane, End::local, why.message());
    lanes_[lane].backoff.reset();
    lanes_[lane].link_back = false;
  } else if (mine.elsewhere()) {
    failover_.tell_shortage(why);
    if (mine.shadow) {
      pass_over(lane);
    }
  }
  mine.decided = true;
  reopen_soon(lane);
  state_.owner.on_lane_decided();
}

void PathRenewal::on_lane_address(size_t lane) {
  if (lanes_[lane].unoffered && paths_.lane(lane).path().address_ready()) {
    lanes_[lane].unoffered = false;
    offer(lane);
  }
}

/// Tells the peer of a new path.
void PathRenewal::offer(size_t lane) {
  Lane& mine = paths_.lane(lane);
  Next& next = lanes_[lane];
  const std::optional<uint32_t> epoch = owner_.on_path_made(lane);
  if (!epoch || !state_.holds(*epoch == mine.epoch + 1, "a new path has the next epoch")) {
    return;
  }
  mine.epoch = *epoch;
  PathOffer offer;
  offer.path = static_cast<uint8_t>(lane);
  offer.epoch = mine.epoch;
  offer.rail = static_cast<uint8_t>(mine.elsewhere() ? next.pair.remote : 0);
  offer.end = paths_.end_of(mine);
  state_.note_step(RoundStep::offer_said, lane, mine.epoch);
  control_.send(encode(ControlType::rebuild, offer));
  state_.context->request_stream_turns(1000);
}

void PathRenewal::on_memory_rejected(size_t lane, const Error& why) {
  if (!failover_.fail_busy(lane, why)) {
    reject_end(lane, End::local, failover_.reject(lane, why).message());
  }
}

void PathRenewal::on_rail_rejected(uint8_t rail) {
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
      reject_end(at, here ? End::local : End::remote, failover_.reject(at, why).message());
    }
  }
}

/// The pairs with that end of the lane are left alone for a while.
void PathRenewal::reject_end(size_t lane, End end, const std::string& why) {
  const bool here = end == End::local;
  const ha::RailPair& pair = lanes_[lane].pair;
  lanes_[lane].looks = false;
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
      candidates_.reject(end, here ? pair.local_nic : pair.remote_nic, state_.context->now());
  if (state_.sound(candidates_) && first) {
    NHA_LOG_WARN("path {} to {} cannot take over through a device {}, another one is tried: {}",
                 lane, state_.owner.peer_text(), here ? "of this host" : "of the peer", why);
  }
}

}  // namespace nccl_ha
