#include "tools/trace/clocks.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace nccl_ha::tools {
namespace {

/// What is further apart is no message of one trace, but damage.
constexpr int64_t plausible_ns = int64_t{1} << 60;

}  // namespace

bool is_of_connection(TraceEvent event) {
  switch (event) {
    case TraceEvent::worker_started:
    case TraceEvent::worker_stopped:
    case TraceEvent::worker_parked:
    case TraceEvent::worker_woken:
    case TraceEvent::worker_overrun:
    case TraceEvent::path_state:
    case TraceEvent::segment_resent:
    case TraceEvent::device_event:
    case TraceEvent::fault_injected:
    case TraceEvent::relay_chunk:
      return false;
    default:
      return true;
  }
}

bool is_of_caller(TraceEvent event) {
  return event == TraceEvent::request_asked || event == TraceEvent::request_noticed;
}

ClockTable::ClockTable(const std::vector<Process>& processes) {
  std::map<uint64_t, size_t> known;
  for (uint32_t i = 0; i < processes.size(); ++i) {
    const uint64_t clock = processes[i].clock;
    const auto found = known.find(clock);
    if (clock != 0 && found != known.end()) {
      group_.push_back(found->second);
    } else {
      known[clock] = places_.size();
      group_.push_back(places_.size());
      places_.emplace_back();
    }
    Place& place = places_[group_.back()];
    if (processes[i].events != 0) {
      const auto begin = static_cast<double>(processes[i].first_ns);
      const auto end = static_cast<double>(processes[i].last_ns);
      place.first_ns = place.recorded ? std::min(place.first_ns, begin) : begin;
      place.last_ns = place.recorded ? std::max(place.last_ns, end) : end;
      place.recorded = true;
    }
    if (processes[i].events > processes[reference_].events) {
      reference_ = i;
    }
  }
}

void ClockTable::add(const Message& message) {
  const size_t a = group_[message.from];
  const size_t b = group_[message.to];
  const auto wild = [](int64_t time) { return time < 0 || time > plausible_ns; };
  if (a != b && !wild(message.sent_ns) && !wild(message.received_ns)) {
    messages_[std::minmax(a, b)].push_back(message);
  }
}

/// The closest limits from all messages, each as much further as the clocks may have drifted
/// between it and the middle of what was recorded.
void ClockTable::relate(const Pair& pair, const std::vector<Message>& all) {
  const auto forth = [&](const Message& one) { return group_[one.from] == pair.first; };
  const Place& mine = places_[pair.first];
  const Place& its = places_[pair.second];
  // How far the second is ahead, roughly: one message is enough to have its events on the first's
  // clock, as events lie seconds apart where drift is of account.
  const Message& any = all.front();
  const double roughly = static_cast<double>(any.received_ns) - static_cast<double>(any.sent_ns);
  const double ahead = forth(any) ? roughly : -roughly;
  double first = mine.first_ns;
  double last = mine.last_ns;
  if (its.recorded) {
    first = mine.recorded ? std::min(first, its.first_ns - ahead) : its.first_ns - ahead;
    last = mine.recorded ? std::max(last, its.last_ns - ahead) : its.last_ns - ahead;
  }
  const double middle = first + (last - first) / 2;
  std::optional<int64_t> at_most;
  std::optional<int64_t> at_least;
  for (const Message& message : all) {
    const int64_t at = forth(message) ? message.sent_ns : message.received_ns;
    const auto slack = static_cast<int64_t>(std::min(
        std::abs(static_cast<double>(at) - middle) * drift, static_cast<double>(plausible_ns)));
    if (forth(message)) {
      const int64_t limit = message.received_ns - message.sent_ns + slack;
      at_most = at_most ? std::min(*at_most, limit) : limit;
    } else {
      const int64_t limit = message.sent_ns - message.received_ns - slack;
      at_least = at_least ? std::max(*at_least, limit) : limit;
    }
  }
  if (!at_most || !at_least) {
    return;  // one way says nothing of the other
  }
  if (*at_most < *at_least) {
    contradicted_ = true;
    return;
  }
  // Moments far from the middle are as much further off.
  const int64_t found = *at_least + (*at_most - *at_least) / 2;
  double furthest = 0;
  const auto look_at = [&](const Place& place, double shift) {
    if (place.recorded) {
      furthest = std::max({furthest, std::abs(place.first_ns - shift - middle),
                           std::abs(place.last_ns - shift - middle)});
    }
  };
  look_at(mine, 0);
  look_at(its, static_cast<double>(found));
  const auto apart =
      static_cast<int64_t>(std::min(furthest * drift, static_cast<double>(plausible_ns)));
  relations_[pair] = {found, (*at_most - *at_least + 1) / 2 + apart, all.size()};
}

void ClockTable::spread_from(size_t clock, const std::vector<bool>& done) {
  for (const auto& [pair, relation] : relations_) {
    if (pair.first != clock && pair.second != clock) {
      continue;
    }
    const size_t other = pair.first == clock ? pair.second : pair.first;
    const int64_t ahead = pair.first == clock ? relation.ahead_ns : -relation.ahead_ns;
    const Place& from = places_[clock];
    Place& to = places_[other];
    // Where the other has events beyond those of the clock between, that one has drifted as well.
    double beyond = 0;
    if (clock != group_[reference_] && from.recorded && to.recorded) {
      const auto there = static_cast<double>(ahead);
      beyond = std::max(
          {0.0, from.first_ns - (to.first_ns - there), (to.last_ns - there) - from.last_ns});
    }
    const auto drifted =
        static_cast<int64_t>(std::min(beyond * drift, static_cast<double>(plausible_ns)));
    const int64_t bound = from.bound_ns + relation.bound_ns + drifted;
    if (!done[other] && (to.bound_ns < 0 || bound < to.bound_ns)) {
      to.shift_ns = from.shift_ns - ahead;
      to.bound_ns = bound;
      to.messages = relation.messages;
    }
  }
}

void ClockTable::solve() {
  if (places_.empty()) {
    return;
  }
  for (const auto& [pair, all] : messages_) {
    relate(pair, all);
  }
  places_[group_[reference_]].bound_ns = 0;
  // From the clock that is known best to those that it is compared with (Dijkstra).
  std::vector<bool> done(places_.size(), false);
  while (true) {
    size_t best = places_.size();
    for (size_t i = 0; i < places_.size(); ++i) {
      if (!done[i] && places_[i].bound_ns >= 0 &&
          (best == places_.size() || places_[i].bound_ns < places_[best].bound_ns)) {
        best = i;
      }
    }
    if (best == places_.size()) {
      return;
    }
    done[best] = true;
    spread_from(best, done);
  }
}

}  // namespace nccl_ha::tools
