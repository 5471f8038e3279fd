#include "tools/trace/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>
#include <utility>

namespace nccl_ha::tools {
namespace {

/// Shown, of what there may be many of.
constexpr size_t stalls_shown = 10;
constexpr size_t rounds_shown = 12;

uint64_t size_class(uint32_t bytes) { return bytes == 0 ? 0 : std::bit_floor(bytes); }

std::vector<LatencyRow> latencies_of(const Timeline& timeline,
                                     const std::vector<TraceMessage>& messages) {
  std::map<std::tuple<int32_t, uint32_t, uint64_t>, std::vector<int64_t>> groups;
  for (const TraceMessage& message : messages) {
    for (const TraceChunk& chunk : message.chunks) {
      if (message.sender >= 0 && chunk.posted_ns != unseen && chunk.acked_ns != unseen) {
        groups[{message.sender, chunk.path, size_class(chunk.bytes)}].push_back(chunk.acked_ns -
                                                                                chunk.posted_ns);
      }
    }
  }
  std::vector<LatencyRow> rows;
  for (auto& [group, times] : groups) {
    const auto& [sender, path, size] = group;
    const TraceConnection& connection = timeline.connection(sender);
    std::sort(times.begin(), times.end());
    rows.push_back({timeline.process_name(connection.process), connection.label,
                    connection.path_name(path), size, times.size(), nearest_rank(times, 0.5),
                    nearest_rank(times, 0.9), nearest_rank(times, 0.99), times.back()});
  }
  return rows;
}

/// How long each path was in use, within what the recorders cover.
class PathClock {
 public:
  explicit PathClock(const Timeline& timeline) : timeline_(timeline) {}

  std::vector<PathTime> read() {
    for (const TraceMoment& moment : timeline_.moments()) {
      if (moment.event && moment.connection >= 0) {
        take(moment);
      }
    }
    std::vector<PathTime> rows;
    for (auto& [key, one] : paths_) {
      const TraceConnection& connection = timeline_.connection(key.first);
      close(one, timeline_.end_ns(connection.process));
      one.row.process = timeline_.process_name(connection.process);
      one.row.connection = connection.label;
      one.row.path = connection.path_name(key.second);
      rows.push_back(std::move(one.row));
    }
    return rows;
  }

 private:
  struct State {
    PathTime row;
    bool up = true;  ///< as it is seen first doing something
    int64_t since_ns = 0;
  };
  State& at(const TraceMoment& moment) {
    const auto path = static_cast<uint32_t>(timeline_.value(moment, "path").value_or(0));
    const auto [found, made] = paths_.try_emplace({moment.connection, path});
    if (made) {
      found->second.since_ns = moment.time_ns;
    }
    return found->second;
  }
  static void close(State& one, int64_t now) {
    (one.up ? one.row.up_ns : one.row.down_ns) += now - std::exchange(one.since_ns, now);
  }
  void take(const TraceMoment& moment) {
    switch (*moment.event) {
      case TraceEvent::path_down: {
        State& one = at(moment);
        close(one, moment.time_ns);
        one.row.failures += one.up ? 1 : 0;
        one.up = false;
        break;
      }
      case TraceEvent::round_part:
        if (timeline_.value(moment, "step") == static_cast<uint64_t>(RoundStep::in_use)) {
          State& one = at(moment);
          close(one, moment.time_ns);
          one.up = true;
        }
        break;
      case TraceEvent::chunk_acked:
      case TraceEvent::chunk_arrived:
        at(moment).row.bytes += timeline_.value(moment, "size").value_or(0);
        break;
      default:
        break;
    }
  }

  const Timeline& timeline_;
  std::map<std::pair<int32_t, uint32_t>, State> paths_;
};

std::vector<ThreadTime> threads_of(const Timeline& timeline) {
  std::map<std::pair<uint32_t, uint32_t>, ThreadTime> rows;
  std::map<std::pair<uint32_t, uint32_t>, int64_t> first;
  for (const TraceMoment& moment : timeline.moments()) {
    const std::pair key(moment.process, moment.thread);
    ThreadTime& row = rows[key];
    if (row.events++ == 0) {
      first[key] = moment.time_ns;
      const auto& ring = timeline.processes()[moment.process].snapshot.rings[moment.thread];
      row.process = timeline.process_name(moment.process);
      row.thread = timeline.thread(moment).name;
      row.caller = timeline.thread(moment).caller;
      row.lost = ring.written > ring.events.size() ? ring.written - ring.events.size() : 0;
    }
    row.span_ns = moment.time_ns - first[key];
    if (moment.event == TraceEvent::worker_woken) {
      row.asleep_ns += static_cast<int64_t>(timeline.value(moment, "slept").value_or(0));
    }
    row.resent += moment.event == TraceEvent::segment_resent ? 1 : 0;
  }
  std::vector<ThreadTime> all;
  for (auto& [key, row] : rows) {
    row.asleep_ns = std::min(row.asleep_ns, row.span_ns);
    all.push_back(std::move(row));
  }
  return all;
}

/// A round begins when a path is taken down, and ends when one is in use in its place.
std::vector<RoundSummary> rounds_of(const Timeline& timeline) {
  std::vector<RoundSummary> rounds;
  std::map<std::pair<int32_t, uint32_t>, size_t> open;
  for (const TraceMoment& moment : timeline.moments()) {
    if (moment.event != TraceEvent::round_part || moment.connection < 0) {
      continue;
    }
    const auto step = timeline.value(moment, "step").value_or(0);
    const auto path = static_cast<uint32_t>(timeline.value(moment, "path").value_or(0));
    const std::pair key(moment.connection, path);
    if (step == static_cast<uint64_t>(RoundStep::taken_down) && !open.contains(key)) {
      open[key] = rounds.size();
      rounds.push_back({moment.connection, path, moment.time_ns, ""});
    }
    const auto found = open.find(key);
    if (found == open.end()) {
      continue;
    }
    RoundSummary& round = rounds[found->second];
    for (const CounterSnapshot::Field& field : timeline.kind(moment).fields) {
      if (field.name == "step") {
        round.steps += round.steps.empty()
                           ? to_text(field, moment.raw)
                           : fmt::format(", {} +{}", to_text(field, moment.raw),
                                         duration_text(moment.time_ns - round.begin_ns));
      }
    }
    if (step == static_cast<uint64_t>(RoundStep::in_use)) {
      open.erase(found);
    }
  }
  return rounds;
}

void print_latencies(const TraceSummary& summary, const NameWidths& widths) {
  const auto line = [&widths](const auto& process, const auto& connection, const auto& path,
                              const auto&... columns) {
    fmt::print("  {:<{}} {:<{}} {:<{}} {:>10} {:>8} {:>10} {:>10} {:>10} {:>10}\n", process,
               widths.process, connection, widths.connection, path, widths.path, columns...);
  };
  fmt::print("\nfrom posting a chunk to its acknowledgement\n");
  line("process", "connection", "path", "bytes from", "chunks", "p50", "p90", "p99", "most");
  for (const LatencyRow& row : summary.latencies) {
    line(row.process, row.connection, row.path, bytes_text(row.size_at_least), row.count,
         duration_text(row.p50_ns), duration_text(row.p90_ns), duration_text(row.p99_ns),
         duration_text(row.most_ns));
  }
}

void print_paths(const TraceSummary& summary, const NameWidths& widths) {
  const auto line = [&widths](const auto& process, const auto& connection, const auto& path,
                              const auto&... columns) {
    fmt::print("  {:<{}} {:<{}} {:<{}} {:>10} {:>10} {:>9} {:>12}\n", process, widths.process,
               connection, widths.connection, path, widths.path, columns...);
  };
  fmt::print("\ntime of each path in each state\n");
  line("process", "connection", "path", "in use", "down", "failures", "bytes");
  for (const PathTime& row : summary.paths) {
    line(row.process, row.connection, row.path, duration_text(row.up_ns),
         duration_text(row.down_ns), row.failures, bytes_text(row.bytes));
  }
}

void print_trouble(const Timeline& timeline, const TraceSummary& summary) {
  fmt::print("\nsent again: {} chunks ({}) after failovers", summary.chunks_again,
             bytes_text(summary.bytes_again));
  size_t resent = 0;
  for (const ThreadTime& row : summary.threads) {
    resent += row.resent;
  }
  fmt::print(", {} segments of datagram paths\n", resent);
  if (!summary.rounds.empty()) {
    fmt::print("\nfailover rounds\n");
  }
  for (size_t i = 0; i < summary.rounds.size() && i < rounds_shown; ++i) {
    const RoundSummary& round = summary.rounds[i];
    const TraceConnection& connection = timeline.connection(round.connection);
    fmt::print("  {}  {} {} {}\n    {}\n", timeline.date(round.begin_ns),
               timeline.process_name(connection.process), connection.label,
               connection.path_name(round.path), round.steps);
  }
  if (summary.rounds.size() > rounds_shown) {
    fmt::print("  and {} more\n", summary.rounds.size() - rounds_shown);
  }
  fmt::print("\nstalls: {}\n", summary.stalls.size());
  for (size_t i = 0; i < summary.stalls.size() && i < stalls_shown; ++i) {
    const TraceStall& stall = summary.stalls[i];
    const TraceConnection& connection = timeline.connection(stall.connection);
    fmt::print("  {}  {:>10}  {} {}: {}\n", timeline.date(stall.begin_ns),
               duration_text(stall.end_ns - stall.begin_ns),
               timeline.process_name(connection.process), connection.label, stall.cause);
  }
}

}  // namespace

int64_t nearest_rank(const std::vector<int64_t>& sorted, double part) {
  if (sorted.empty()) {
    return 0;
  }
  const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

TraceSummary summarize(const Timeline& timeline, int64_t stall_ns) {
  TraceSummary summary;
  const std::vector<TraceMessage> messages = messages_of(timeline);
  summary.latencies = latencies_of(timeline, messages);
  summary.calls = calls_of(timeline, messages);
  summary.paths = PathClock(timeline).read();
  summary.threads = threads_of(timeline);
  summary.stalls = stalls_of(timeline, stall_ns);
  summary.rounds = rounds_of(timeline);
  for (const TraceMoment& moment : timeline.moments()) {
    if (moment.event == TraceEvent::chunks_replayed) {
      summary.chunks_again += timeline.value(moment, "chunks").value_or(0);
    } else if (moment.event == TraceEvent::failover) {
      summary.bytes_again += timeline.value(moment, "again").value_or(0);
    }
  }
  return summary;
}

void print_summary(const Timeline& timeline, const TraceSummary& summary) {
  for (const TraceSource& source : timeline.processes()) {
    const CounterSnapshot& snapshot = source.snapshot;
    fmt::print("{}:{} ({}), nccl-ha {}{}\n", snapshot.host, snapshot.pid, snapshot.program,
               snapshot.build,
               snapshot.reason.empty() ? "" : fmt::format("; dumped as {}", snapshot.reason));
  }
  fmt::print("events from {} to {} ({})\n", timeline.date(timeline.begin_ns()),
             timeline.date(timeline.end_ns()),
             duration_text(timeline.end_ns() - timeline.begin_ns()));
  for (const ThreadTime& row : summary.threads) {
    fmt::print("  {} {}: {} events over {}, {} older ones overwritten", row.process, row.thread,
               row.events, duration_text(row.span_ns), row.lost);
    const double span = static_cast<double>(std::max<int64_t>(row.span_ns, 1));
    fmt::print("{}\n", row.caller ? ""
                                  : fmt::format(", asleep {:.0f}%",
                                                100.0 * static_cast<double>(row.asleep_ns) / span));
  }
  const NameWidths widths = name_widths(timeline);
  print_calls(summary.calls, widths);
  print_latencies(summary, widths);
  print_paths(summary, widths);
  print_trouble(timeline, summary);
}

}  // namespace nccl_ha::tools
