#include "tools/trace/timeline.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <tuple>
#include <utility>

namespace nccl_ha::tools {
namespace {

/// Of what a hostile file may hold.
int64_t wrapping_sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

/// Of "path 3 eth0", "shadow 3 eth0" or "worker 3".
std::optional<uint32_t> number_in(const std::string& label) {
  const size_t space = label.find(' ');
  if (space == std::string::npos) {
    return std::nullopt;
  }
  uint32_t number = 0;
  const auto [end, error] =
      std::from_chars(label.data() + space + 1, label.data() + label.size(), number);
  return error == std::errc{} ? std::optional(number) : std::nullopt;
}

std::optional<TraceEvent> event_by_name(const std::string& name) {
  for (size_t known = 0; known < trace_event_count(); ++known) {
    if (name == describe(static_cast<TraceEvent>(known)).name) {
      return static_cast<TraceEvent>(known);
    }
  }
  return std::nullopt;
}

/// Of several dumps of one process the newest, which holds most of what the others do.
std::vector<TraceSource> newest_of_each(std::vector<TraceSource> sources) {
  using Process = std::tuple<std::string, uint64_t, uint32_t, uint32_t, int64_t>;
  std::map<Process, size_t> known;
  std::vector<TraceSource> kept;
  for (TraceSource& source : sources) {
    const CounterSnapshot& one = source.snapshot;
    const auto [found, fresh] = known.try_emplace(
        Process(one.host, one.clock, one.pid, one.instance, one.created_ns), kept.size());
    if (fresh) {
      kept.push_back(std::move(source));
      continue;
    }
    TraceSource& other = kept[found->second];
    if (one.dumped_ns > other.snapshot.dumped_ns) {
      std::swap(source, other);
    }
    other.damages.push_back(
        fmt::format("{} is an older dump of the same process, and left out", source.name));
  }
  return kept;
}

}  // namespace

uint64_t counter_of(const CounterSnapshot& snapshot, const CounterSnapshot::Block& block,
                    std::string_view counter) {
  const auto& names = snapshot.scopes[block.scope].counters;
  for (size_t i = 0; i < names.size() && i < block.values.size(); ++i) {
    if (names[i].name == counter) {
      return block.values[i];
    }
  }
  return 0;
}

NameWidths name_widths(const Timeline& timeline) {
  NameWidths widths;
  for (const TraceConnection& one : timeline.connections()) {
    widths.process = std::max(widths.process, timeline.process_name(one.process).size());
    widths.connection = std::max(widths.connection, one.label.size());
    for (const auto& [number, label] : one.paths) {
      widths.path = std::max(widths.path, label.size());
    }
  }
  return widths;
}

std::string duration_text(int64_t ns) {
  const auto value = static_cast<double>(ns);
  const double size = std::abs(value);
  return size < 1e3   ? fmt::format("{} ns", ns)
         : size < 1e6 ? fmt::format("{:.1f} us", value / 1e3)
         : size < 1e9 ? fmt::format("{:.2f} ms", value / 1e6)
                      : fmt::format("{:.2f} s", value / 1e9);
}

std::string bytes_text(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return bytes < 1024            ? fmt::format("{} B", bytes)
         : bytes < (1U << 20)    ? fmt::format("{:.3g} KiB", value / 1024)
         : bytes < (1ULL << 30U) ? fmt::format("{:.3g} MiB", value / (1 << 20))
                                 : fmt::format("{:.3g} GiB", value / (1 << 30));
}

std::string TraceConnection::path_name(uint32_t path) const {
  const auto found = paths.find(path);
  return found == paths.end() ? fmt::format("path {}", path) : found->second;
}

Timeline Timeline::of(std::vector<TraceSource> sources) {
  Timeline made;
  made.processes_ = newest_of_each(std::move(sources));
  made.known_.resize(made.processes_.size());
  for (uint32_t i = 0; i < made.processes_.size(); ++i) {
    for (const auto& kind : made.processes_[i].snapshot.kinds) {
      made.known_[i].push_back(event_by_name(kind.name));
    }
    made.find_threads(i);
    made.find_connections(i);
  }
  made.find_peers();
  for (uint32_t i = 0; i < made.processes_.size(); ++i) {
    made.add_moments(i);
  }
  made.compare_clocks();
  made.align();
  return made;
}

void Timeline::find_threads(uint32_t process) {
  const CounterSnapshot& snapshot = processes_[process].snapshot;
  std::map<uint64_t, const CounterSnapshot::Block*> blocks;
  for (const CounterSnapshot::Block& block : snapshot.blocks) {
    blocks[block.id] = &block;
  }
  std::vector<TraceThread>& all = threads_.emplace_back();
  for (const CounterSnapshot::Ring& ring : snapshot.rings) {
    const auto owner = blocks.find(ring.owner);
    const bool known = owner != blocks.end() && !owner->second->label.empty();
    all.push_back({known ? owner->second->label : fmt::format("thread {}", all.size()),
                   known && snapshot.scopes[owner->second->scope].name == "caller"});
  }
}

void Timeline::find_connections(uint32_t process) {
  const CounterSnapshot& snapshot = processes_[process].snapshot;
  std::map<uint64_t, size_t> by_block;
  for (const CounterSnapshot::Block& block : snapshot.blocks) {
    const std::string& scope = snapshot.scopes[block.scope].name;
    if (scope == "connection") {
      TraceConnection one;
      one.process = process;
      one.block = block.id;
      one.key = counter_of(snapshot, block, "key");
      one.actor = counter_of(snapshot, block, "actor");
      one.said_ns = static_cast<int64_t>(counter_of(snapshot, block, "said_ns"));
      one.heard_ns = static_cast<int64_t>(counter_of(snapshot, block, "heard_ns"));
      one.ended = block.ended;
      one.began_ns = block.began_ns;
      one.label = block.label;
      one.sender = block.label.starts_with("send");
      for (uint32_t ring = 0; ring < snapshot.rings.size(); ++ring) {
        if (snapshot.rings[ring].owner == block.parent) {
          one.worker = ring;
        }
      }
      by_block[block.id] = connections_.size();
      connections_.push_back(std::move(one));
    } else if (scope == "path") {
      const auto owner = by_block.find(block.parent);  // parents are older
      const auto number = number_in(block.label);
      if (owner != by_block.end() && number) {
        connections_[owner->second].paths[*number] = block.label;
      }
    }
  }
}

void Timeline::find_peers() {
  std::map<uint64_t, std::vector<int32_t>> by_key;
  for (int32_t i = 0; i < static_cast<int32_t>(connections_.size()); ++i) {
    if (connection(i).key != 0) {
      by_key[connection(i).key].push_back(i);
    }
  }
  for (const auto& [key, sides] : by_key) {
    for (size_t i = 0; i + 1 < sides.size(); ++i) {
      TraceConnection& a = connections_[static_cast<size_t>(sides[i])];
      TraceConnection& b = connections_[static_cast<size_t>(sides[i + 1])];
      // More than two sides only when a process was given twice.
      if (a.peer < 0 && b.peer < 0 && a.sender != b.sender) {
        a.peer = sides[i + 1];
        b.peer = sides[i];
      }
    }
  }
}

void Timeline::add_moments(uint32_t process) {
  const CounterSnapshot& snapshot = processes_[process].snapshot;
  // Actors' numbers are used again: the last that began before the event is meant.
  std::map<std::pair<uint32_t, uint64_t>, std::vector<int32_t>> by_actor;
  for (int32_t i = 0; i < static_cast<int32_t>(connections_.size()); ++i) {
    if (connection(i).process == process) {
      by_actor[{connection(i).worker, connection(i).actor}].push_back(i);
    }
  }
  std::map<uint32_t, uint32_t> ring_of_worker;
  for (uint32_t ring = 0; ring < snapshot.rings.size(); ++ring) {
    const TraceThread& thread = threads_[process][ring];
    const auto number = thread.caller ? std::nullopt : number_in(thread.name);
    ring_of_worker.try_emplace(number.value_or(ring), ring);
  }
  for (uint32_t ring = 0; ring < snapshot.rings.size(); ++ring) {
    for (const RecordedEvent& raw : snapshot.rings[ring].events) {
      TraceMoment moment;
      moment.time_ns = raw.time_ns;
      moment.process = process;
      moment.thread = ring;
      moment.raw = raw;
      const auto kind = static_cast<size_t>(raw.event);
      if (kind < known_[process].size()) {
        moment.event = known_[process][kind];
      }
      uint32_t worker = ring;
      if (moment.event && is_of_caller(*moment.event)) {
        const auto named = ring_of_worker.find(raw.c);
        worker = named == ring_of_worker.end() ? ring : named->second;
      }
      const auto sides = by_actor.find({worker, raw.actor});
      if (moment.event && is_of_connection(*moment.event) && sides != by_actor.end()) {
        for (const int32_t side : sides->second) {
          if (connection(side).began_ns <= raw.time_ns) {
            moment.connection = side;
          }
        }
      }
      moments_.push_back(moment);
    }
  }
}

/// By heartbeats and confirmations, which both sides count alike, and by the handshakes.
void Timeline::compare_clocks() {
  std::vector<ClockTable::Process> seen;
  for (const TraceSource& source : processes_) {
    ClockTable::Process one{source.snapshot.clock, 0, 0, 0};
    for (const auto& ring : source.snapshot.rings) {
      for (const RecordedEvent& event : ring.events) {
        one.first_ns = one.events == 0 ? event.time_ns : std::min(one.first_ns, event.time_ns);
        one.last_ns = one.events == 0 ? event.time_ns : std::max(one.last_ns, event.time_ns);
        ++one.events;
      }
    }
    seen.push_back(one);
  }
  clocks_ = ClockTable(seen);
  using Mark = std::array<uint64_t, 5>;  // side, key, path, epoch, number
  const auto mark = [this](const TraceMoment& moment, bool by_sender) {
    return Mark{by_sender ? 1U : 0U, connection(moment.connection).key,
                value(moment, "path").value_or(0), value(moment, "epoch").value_or(0),
                value(moment, "number").value_or(0)};
  };
  std::map<Mark, std::pair<uint32_t, int64_t>> sent;
  for (const TraceMoment& moment : moments_) {
    if (moment.event == TraceEvent::mark_sent && moment.connection >= 0) {
      sent[mark(moment, connection(moment.connection).sender)] = {moment.process, moment.time_ns};
    }
  }
  for (const TraceMoment& moment : moments_) {
    if (moment.event != TraceEvent::mark_received || moment.connection < 0 ||
        connection(moment.connection).key == 0) {
      continue;
    }
    const auto of = sent.find(mark(moment, !connection(moment.connection).sender));
    if (of != sent.end()) {
      clocks_.add({of->second.first, moment.process, of->second.second, moment.time_ns});
    }
  }
  for (const TraceConnection& one : connections_) {
    if (one.peer < 0 || !one.sender) {
      continue;
    }
    const TraceConnection& peer = connection(one.peer);
    if (one.said_ns != 0 && peer.heard_ns != 0) {
      clocks_.add({one.process, peer.process, one.said_ns, peer.heard_ns});
    }
    if (peer.said_ns != 0 && one.heard_ns != 0) {
      clocks_.add({peer.process, one.process, peer.said_ns, one.heard_ns});
    }
  }
  clocks_.solve();
}

/// Moves all onto one clock.
void Timeline::align() {
  for (TraceMoment& moment : moments_) {
    moment.time_ns = wrapping_sum(moment.time_ns, clocks_.shift_ns(moment.process));
  }
  std::stable_sort(
      moments_.begin(), moments_.end(),
      [](const TraceMoment& a, const TraceMoment& b) { return a.time_ns < b.time_ns; });
  ends_.assign(processes_.size(), 0);
  for (const TraceMoment& moment : moments_) {
    ends_[moment.process] = moment.time_ns;
  }
}

std::string Timeline::process_name(uint32_t process) const {
  const CounterSnapshot& snapshot = processes_[process].snapshot;
  return fmt::format("{}:{}", snapshot.host.empty() ? "?" : snapshot.host, snapshot.pid);
}

std::optional<uint64_t> Timeline::value(const TraceMoment& moment, std::string_view field) const {
  for (const CounterSnapshot::Field& one : kind(moment).fields) {
    if (one.name == field) {
      return value_of(moment.raw, one.word, one.shift, one.bits);
    }
  }
  return std::nullopt;
}

int64_t Timeline::realtime_ns(int64_t time_ns) const {
  if (processes_.empty()) {
    return time_ns;
  }
  const CounterSnapshot& snapshot = processes_[clocks_.reference()].snapshot;
  return wrapping_sum(
      wrapping_sum(snapshot.created_realtime_ns, time_ns),
      wrapping_sum(0, static_cast<int64_t>(0 - static_cast<uint64_t>(snapshot.created_ns))));
}

std::string Timeline::date(int64_t time_ns) const {
  constexpr int64_t second = 1'000'000'000;
  const int64_t ns = realtime_ns(time_ns);
  const time_t seconds = ns / second;
  tm parts{};
  char text[64] = "?";
  if (localtime_r(&seconds, &parts) != nullptr) {
    strftime(text, sizeof text, "%F %T", &parts);
  }
  return fmt::format("{}.{:06}", text, ns < 0 ? 0 : ns % second / 1000);
}

}  // namespace nccl_ha::tools
