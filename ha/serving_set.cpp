#include "ha/serving_set.h"

#include <algorithm>

namespace nccl_ha::ha {
namespace {

using Lane = ServingSet::Lane;

bool carries(const Lane& lane) { return lane.usable && lane.weight != 0; }

bool works(std::span<const Lane> lanes, uint8_t rank) {
  return std::any_of(lanes.begin(), lanes.end(),
                     [&](const Lane& lane) { return lane.rank == rank && carries(lane); });
}

/// The best rank of which something works.
std::optional<uint8_t> best_of(std::span<const Lane> lanes) {
  std::optional<uint8_t> best;
  for (const Lane& lane : lanes) {
    if (carries(lane) && (!best || lane.rank < *best)) {
      best = lane.rank;
    }
  }
  return best;
}

/// Since when all lanes of a rank on one rail work; nothing if one does not, or carries nothing.
std::optional<Instant> rail_since(std::span<const Lane> lanes, uint8_t rank, uint8_t rail) {
  Instant since{};
  for (const Lane& lane : lanes) {
    if (lane.rank != rank || lane.rail != rail) {
      continue;
    }
    if (!carries(lane)) {
      return std::nullopt;
    }
    since = std::max(since, lane.since);
  }
  return since;
}

/// Since when some rail of a rank is whole; nothing if none is.
std::optional<Instant> whole_since(std::span<const Lane> lanes, uint8_t rank) {
  std::optional<Instant> first;
  for (const Lane& lane : lanes) {
    const auto since =
        lane.rank == rank ? rail_since(lanes, rank, lane.rail) : std::optional<Instant>{};
    if (since && (!first || *since < *first)) {
      first = since;
    }
  }
  return first;
}

bool is_fallback(std::span<const Lane> lanes, uint8_t rank) {
  return std::any_of(lanes.begin(), lanes.end(),
                     [&](const Lane& lane) { return lane.rank == rank && lane.fallback; });
}

}  // namespace

ServingSet::Step ServingSet::look(const View& view, Instant now) {
  invariants_.hold(view.lanes.size() <= lanes_max, "lanes are few");
  const Step step = choose(view, now);
  share(view.lanes);
  invariants_.hold((count_ != 0) == best_of(view.lanes).has_value(),
                   "while any lane works, some carry data");
  return step;
}

ServingSet::Step ServingSet::choose(const View& view, Instant now) {
  const auto best = best_of(view.lanes);
  if (!best || *best == rank_) {
    return Step::stay;
  }
  if (!works(view.lanes, rank_)) {
    move(*best, now);
    return Step::move;
  }
  // The rank at hand works, and so does a better one.
  const bool slower = is_fallback(view.lanes, rank_) && !is_fallback(view.lanes, *best);
  const auto since = whole_since(view.lanes, *best);
  if (*best > rank_ || view.detained || !(view.wanted || slower) || !since) {
    return Step::stay;
  }
  const Instant due = *since + after();
  if (now < due || !view.between) {
    look_at_ = std::max(due, now + between_interval);
    return Step::later;
  }
  move(*best, now);
  return Step::move;
}

bool ServingSet::give_way(const View& view, Instant now) {
  const auto best = best_of(view.lanes);
  if (!best || *best >= rank_) {
    return false;
  }
  move(*best, now);
  share(view.lanes);
  invariants_.hold(count_ != 0, "traffic gives way to lanes that work");
  return true;
}

void ServingSet::move(uint8_t rank, Instant now) {
  invariants_.hold(rank != rank_, "traffic moves to another rank");
  if (rank < rank_) {
    went_back_at_ = now;
  } else if (went_back_at_ && now - *went_back_at_ < after()) {
    doublings_ = std::min(doublings_ + 1, doublings_max);
  } else {
    doublings_ = 0;
  }
  rank_ = rank;
  invariants_.hold(doublings_ <= doublings_max, "the wait for a better rank is bounded");
}

void ServingSet::share(std::span<const Lane> lanes) {
  count_ = 0;
  for (size_t i = 0; i < lanes.size() && count_ < shares_.size(); ++i) {
    if (lanes[i].rank == rank_ && carries(lanes[i])) {
      shares_[count_++] = {static_cast<uint8_t>(i), lanes[i].weight};
    }
  }
}

bool ServingSet::serves(size_t lane) const {
  const auto all = shares();
  return std::any_of(all.begin(), all.end(), [&](const Share& one) { return one.lane == lane; });
}

}  // namespace nccl_ha::ha
