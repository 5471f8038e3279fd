#include "tools/trace/stalls.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

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
    const bool own_worker = moment.worker == one.worker;
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

/// Of one sender: how much is under way, and since when nothing moved.
struct Progress {
  size_t open = 0;
  int64_t last_ns = 0;
};

}  // namespace

std::vector<TraceStall> stalls_of(const Timeline& timeline, int64_t least_ns) {
  std::map<int32_t, Progress> senders;
  std::vector<TraceStall> stalls;
  for (const TraceMoment& moment : timeline.moments()) {
    if (moment.connection < 0 || !moment.event) {
      continue;
    }
    Progress& one = senders[moment.connection];
    if (moment.event == TraceEvent::chunk_posted) {
      one.last_ns = one.open == 0 ? moment.time_ns : one.last_ns;
      ++one.open;
    } else if (moment.event == TraceEvent::chunk_acked) {
      if (one.open != 0 && moment.time_ns - one.last_ns >= least_ns) {
        stalls.push_back({moment.connection, one.last_ns, moment.time_ns, ""});
      }
      one.open -= one.open == 0 ? 0 : 1;
      one.last_ns = moment.time_ns;
    }
  }
  for (const auto& [connection, one] : senders) {
    if (one.open != 0 && timeline.end_ns() - one.last_ns >= least_ns) {
      stalls.push_back({connection, one.last_ns, timeline.end_ns(), ""});
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
