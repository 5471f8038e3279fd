// How a shadow that works gives way to a look for a better pair of ends.
#include <algorithm>
#include <utility>

#include "actors/connection/path_renewal.h"

namespace nccl_ha {

bool PathRenewal::shares_a_nic(const ha::RailPair& pair) const {
  const auto is_first = [&](size_t place) {
    return place < end_nics_.size() && first_end_ < end_nics_.size() &&
           end_nics_[place] == end_nics_[first_end_];
  };
  return !first_over_ && (paths_.is_primary(pair.local) || is_first(pair.remote));
}

/// A shadow that fails with the first path, or over another fabric, though there is a pair that
/// need not, `is_such` if given.
bool PathRenewal::could_be_better(size_t lane,
                                  const std::function<bool(const ha::RailPair&)>& is_such) const {
  const Lane& mine = paths_.lane(lane);
  const ha::RailPair& pair = lanes_[lane].pair;
  const bool other_fabric = paths_.is_fallback(mine);
  const auto is_better = [&](const ha::RailPair& other) {
    const bool own = paths_.places()[other.local].at.kind == state_.attachment.kind;
    return (other_fabric ? own : !shares_a_nic(other)) && (!is_such || is_such(other));
  };
  return mine.shadow && (other_fabric || shares_a_nic(pair)) &&
         candidates_.any_better(mine.shadow_number, pair, state_.context->now(), is_better);
}

/// Links of the own fabric are back: what has no path takes one of them; what works, but could be
/// better, gives way to a look.  Not each time that one comes and goes, which would leave it no
/// path, but less and less often while nothing comes of it.
void PathRenewal::heed(size_t lane, End end, const std::vector<size_t>& back) {
  if (!paths_.lane(lane).usable) {
    turn(lane, end, back);
    return;
  }
  const auto is_back = [&](const ha::RailPair& pair) {
    const size_t nic = end == End::local ? pair.local_nic : pair.remote_nic;
    return std::ranges::find(back, nic) != back.end();
  };
  if (!could_be_better(lane, is_back)) {
    return;
  }
  if (is_needed(lane)) {
    look_in(better_first);
  } else if (take_news(lane)) {
    look(lane, "a NIC has its link again and could stand by");
  }
}

/// Where first paths stay down, one of another fabric would carry all for ever.
bool PathRenewal::is_needed(size_t lane) const {
  const bool only_slow = first_over_ && paths_.is_fallback(paths_.lane(lane));
  return !only_slow && (!paths_.own_usable() || owner_.serves(lane));
}

/// False: too early, and it is looked for later.
bool PathRenewal::take_news(size_t lane) {
  Next& next = lanes_[lane];
  const Instant now = state_.context->now();
  if (now < next.news_at) {
    look_in(next.news_at - now);
    return false;
  }
  next.news_at = now + next.news_wait;
  next.news_wait = std::min(2 * next.news_wait, better_interval);
  better_wait_ = better_soon;  // should it come up over another pair meanwhile
  return true;
}

/// A shadow that nobody needs gives way to an attempt over a better pair, a short one.  False: it
/// is needed.
bool PathRenewal::look(size_t lane, const std::string& why) {
  if (is_needed(lane)) {
    return false;
  }
  lanes_[lane].looks = true;
  owner_.on_lane_failed(lane, fail(Errc::again, why));
  return true;
}

/// At the latest; not all connections at once.
void PathRenewal::look_in(Duration wait) {
  constexpr uint32_t spread = 16;
  const Duration later = wait / (4 * spread) * (state_.id.index % spread);
  look_at_ = std::min(look_at_, state_.context->now() + wait + later);
  state_.context->timers().cancel(better_timer_);
  state_.context->timers().arm(better_timer_, look_at_);
}

/// What could be the shadow instead may be there by now: an RDMA port, a NIC that the first path
/// does not use.
void PathRenewal::look_for_better() {
  look_at_ = Instant::max();
  Duration next = better_interval;
  for (size_t lane = paths_.own(); lane < paths_.size() && state_.live(); ++lane) {
    const bool better = paths_.lane(lane).usable && could_be_better(lane);
    if (better && !look(lane, "checking whether a better path can become the standby")) {
      next = better_first;
    }
  }
  if (state_.live()) {
    look_in(next);
  }
}

}  // namespace nccl_ha
