#include "tools/trace/show.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <set>

namespace nccl_ha::tools {
namespace {

bool is_of(const Timeline& timeline, const TraceMoment& moment, const std::string& connection) {
  if (moment.connection < 0) {
    return false;
  }
  const TraceConnection& one = timeline.connection(moment.connection);
  return one.label.find(connection) != std::string::npos ||
         fmt::format("{:016x}", one.key).find(connection) != std::string::npos;
}

bool passes(const Timeline& timeline, const TraceMoment& moment, const TraceFilter& filter) {
  const std::string& name = timeline.kind(moment).name;
  return (filter.events.empty() || std::ranges::find(filter.events, name) != filter.events.end()) &&
         (filter.process.empty() ||
          timeline.process_name(moment.process).find(filter.process) != std::string::npos) &&
         (filter.connection.empty() || is_of(timeline, moment, filter.connection)) &&
         (filter.path < 0 ||
          timeline.value(moment, "path") == static_cast<uint64_t>(filter.path)) &&
         (filter.since_s <= 0 ||
          static_cast<double>(timeline.end_ns() - moment.time_ns) / 1e9 <= filter.since_s);
}

}  // namespace

std::vector<const TraceMoment*> filtered(const Timeline& timeline, const TraceFilter& filter) {
  std::vector<const TraceMoment*> all;
  for (const TraceMoment& moment : timeline.moments()) {
    if (passes(timeline, moment, filter)) {
      all.push_back(&moment);
    }
  }
  if (filter.last != 0 && all.size() > filter.last) {
    all.erase(all.begin(), all.end() - static_cast<ptrdiff_t>(filter.last));
  }
  return all;
}

std::string moment_text(const Timeline& timeline, const TraceMoment& moment) {
  const CounterSnapshot::EventKind& kind = timeline.kind(moment);
  std::string text = fmt::format("{} {} {}", timeline.process_name(moment.process),
                                 timeline.thread(moment).name, kind.name);
  for (const CounterSnapshot::Field& field : kind.fields) {
    if (field.name == "key") {
      text +=
          fmt::format(" key={:016x}", value_of(moment.raw, field.word, field.shift, field.bits));
    } else {
      text += fmt::format(" {}={}", field.name, to_text(field, moment.raw));
    }
  }
  if (moment.connection >= 0) {
    text += fmt::format("  [{}]", timeline.connection(moment.connection).label);
  } else {
    text += fmt::format("  [actor {}]", moment.raw.actor);
  }
  return text;
}

std::string unknown_events(const Timeline& timeline, const TraceFilter& filter) {
  std::set<std::string> known;
  for (const TraceSource& source : timeline.processes()) {
    for (const CounterSnapshot::EventKind& kind : source.snapshot.kinds) {
      known.insert(kind.name);
    }
  }
  for (const std::string& name : filter.events) {
    if (!known.contains(name)) {
      return fmt::format("--event {}: there are {}", name, fmt::join(known, ", "));
    }
  }
  return "";
}

void print_moments(const Timeline& timeline, const TraceFilter& filter) {
  const auto shown = filtered(timeline, filter);
  for (const TraceMoment* moment : shown) {
    fmt::print("{}  {}\n", timeline.date(moment->time_ns), moment_text(timeline, *moment));
  }
  if (shown.empty()) {
    fmt::print(stderr, "nccl-ha trace: none of {} events passes the filters\n",
               timeline.moments().size());
  }
}

std::string clocks_text(const Timeline& timeline) {
  std::string text;
  const ClockTable& clocks = timeline.clocks();
  for (uint32_t i = 0; i < timeline.processes().size(); ++i) {
    const int64_t bound = clocks.bound_ns(i);
    text += fmt::format("{}: ", timeline.process_name(i));
    if (i == clocks.reference()) {
      text += "its clock is the common one\n";
    } else if (bound < 0) {
      text += "no messages went both ways: its clock is left as it is\n";
    } else if (bound == 0) {
      text += "the same clock\n";
    } else {
      text +=
          fmt::format("clock moved by {}, at most {} wrong, from {} messages\n",
                      duration_text(clocks.shift_ns(i)), duration_text(bound), clocks.messages(i));
    }
  }
  if (clocks.contradicted()) {
    text += "messages contradict each other: a clock was changed between them\n";
  }
  return text;
}

void print_remarks(const Timeline& timeline) {
  for (const TraceSource& source : timeline.processes()) {
    for (const std::string& damage : source.damages) {
      fmt::print(stderr, "nccl-ha trace: {}: {}; the rest is read\n", source.name, damage);
    }
  }
  if (timeline.processes().size() > 1) {
    fmt::print(stderr, "{}", clocks_text(timeline));
  }
}

}  // namespace nccl_ha::tools
