#include "tools/trace/stalls.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace nccl_ha::tools {
namespace {

/// What else happened in a stall.
struct Circumstances {
  size_t paths_down = 0;
  uint32_t path = 0;
  size_t resent = 0;
  size_t marks = 0;
  int64_t away_ns = 0;  ///< the worker slept or was held up
};

Circumstances look(const Timeline& timeline, int32_t connection, int64_t begin, int64_t end) {
  Circumstances seen;
  const TraceConnection& one = timeline.connection(connection);
  const auto& all = timeline.moments();
  auto at = std::lower_bound(
      all.begin(), all.end(), begin,
      [](const TraceMoment& moment, int64_t time) { return moment.time_ns < time; });
  for (; at != all.end() && at->time_ns <= end; ++at) {
    const TraceMoment& moment = *at;
    if (!moment.event || moment.process != one.process) {
      continue;
    }
    const bool own = moment.connection == connection;
    const bool own_worker = moment.thread == one.worker;
    switch (*moment.event) {
      case TraceEvent::path_down:
        seen.paths_down += own ? 1 : 0;
        seen.path =
            own ? static_cast<uint32_t>(timeline.value(moment, "path").value_or(0)) : seen.path;
        break;
      case TraceEvent::segment_resent:
        seen.resent += own_worker ? 1 : 0;
        break;
      case TraceEvent::mark_received:
      case TraceEvent::heartbeat_answered:
        seen.marks += own ? 1 : 0;
        break;
      case TraceEvent::worker_overrun:
        seen.away_ns +=
            own_worker ? static_cast<int64_t>(timeline.value(moment, "took").value_or(0)) : 0;
        break;
      default:
        break;
    }
  }
  return seen;
}

std::string cause_of(const Timeline& timeline, int32_t connection, int64_t begin, int64_t end) {
  const Circumstances seen = look(timeline, connection, begin, end);
  if (seen.paths_down != 0) {
    return fmt::format("{} was given up and replaced",
                       timeline.connection(connection).path_name(seen.path));
  }
  if (seen.away_ns > (end - begin) / 2) {
    return fmt::format("this process did not run for {}", duration_text(seen.away_ns));
  }
  if (seen.resent != 0) {
    return fmt::format("packets were lost: {} segments went again", seen.resent);
  }
  if (seen.marks != 0) {
    return "the peer answers heartbeats: the path is full or slow";
  }
  return "nothing came from the peer";
}

/// Of one sender: what is under way, and since when nothing moved.  A chunk that went again counts
/// once, and what a failover found to be there already is over with its send.
struct Progress {
  using Send = std::pair<uint64_t, uint64_t>;  // group, position
  std::map<Send, std::set<uint64_t>> open;     ///< chunks
  int64_t last_ns = 0;
};

}  // namespace

std::vector<TraceStall> stalls_of(const Timeline& timeline, int64_t least_ns) {
  std::map<int32_t, Progress> senders;
  std::vector<TraceStall> stalls;
  for (const TraceMoment& moment : timeline.moments()) {
    if (moment.connection < 0 ||
        (moment.event != TraceEvent::chunk_posted && moment.event != TraceEvent::chunk_acked &&
         moment.event != TraceEvent::transfer_sent)) {
      continue;
    }
    Progress& one = senders[moment.connection];
    const Progress::Send send(timeline.value(moment, "group").value_or(0),
                              timeline.value(moment, "position").value_or(0));
    const uint64_t chunk = timeline.value(moment, "chunk").value_or(0);
    if (moment.event == TraceEvent::chunk_posted) {
      one.last_ns = one.open.empty() ? moment.time_ns : one.last_ns;
      one.open[send].insert(chunk);
      continue;
    }
    if (!one.open.empty() && moment.time_ns - one.last_ns >= least_ns) {
      stalls.push_back({moment.connection, one.last_ns, moment.time_ns, ""});
    }
    one.last_ns = moment.time_ns;
    const auto found = one.open.find(send);
    if (found == one.open.end()) {
      continue;
    }
    found->second.erase(chunk);
    if (moment.event == TraceEvent::transfer_sent || found->second.empty()) {
      one.open.erase(found);
    }
  }
  for (const auto& [connection, one] : senders) {
    // What another process recorded later says nothing of this one.
    const int64_t end = timeline.end_ns(timeline.connection(connection).process);
    if (!one.open.empty() && end - one.last_ns >= least_ns) {
      stalls.push_back({connection, one.last_ns, end, ""});
    }
  }
  for (TraceStall& stall : stalls) {
    stall.cause = cause_of(timeline, stall.connection, stall.begin_ns, stall.end_ns);
  }
  std::stable_sort(stalls.begin(), stalls.end(), [](const TraceStall& a, const TraceStall& b) {
    return a.end_ns - a.begin_ns > b.end_ns - b.begin_ns;
  });
  return stalls;
}

}  // namespace nccl_ha::tools
