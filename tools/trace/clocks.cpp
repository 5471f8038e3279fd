#include "tools/trace/clocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
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
/// between it and the middle of them.
void ClockTable::relate(const Pair& pair, const std::vector<Message>& all) {
  const auto forth = [&](const Message& one) { return group_[one.from] == pair.first; };
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t last = 0;
  for (const Message& message : all) {
    const int64_t at = forth(message) ? message.sent_ns : message.received_ns;
    first = std::min(first, at);
    last = std::max(last, at);
  }
  const int64_t middle = first + (last - first) / 2;
  std::optional<int64_t> at_most;
  std::optional<int64_t> at_least;
  for (const Message& message : all) {
    const int64_t at = forth(message) ? message.sent_ns : message.received_ns;
    const auto slack = static_cast<int64_t>(std::abs(static_cast<double>(at - middle)) * drift);
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
  const auto apart = static_cast<int64_t>(static_cast<double>(last - middle) * drift);
  relations_[pair] = {*at_least + (*at_most - *at_least) / 2,
                      (*at_most - *at_least + 1) / 2 + apart, all.size()};
}

void ClockTable::spread_from(size_t clock, const std::vector<bool>& done) {
  for (const auto& [pair, relation] : relations_) {
    if (pair.first != clock && pair.second != clock) {
      continue;
    }
    const size_t other = pair.first == clock ? pair.second : pair.first;
    const int64_t ahead = pair.first == clock ? relation.ahead_ns : -relation.ahead_ns;
    const int64_t bound = places_[clock].bound_ns + relation.bound_ns;
    if (!done[other] && (places_[other].bound_ns < 0 || bound < places_[other].bound_ns)) {
      places_[other] = {places_[clock].shift_ns - ahead, bound, relation.messages};
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
