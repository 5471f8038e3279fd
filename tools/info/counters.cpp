#include "tools/info/counters.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "runtime/telemetry/counter_reader.h"
#include "tools/common/output.h"
#include "tools/common/refusal.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

constexpr Refusal refuse_counters{"nccl-ha info", 2};

/// Of each flight recorder, in the table.
constexpr size_t events_shown = 10;

const char* to_text(CounterKind kind) {
  switch (kind) {
    case CounterKind::sum:
      return "sum";
    case CounterKind::level:
      return "level";
    case CounterKind::most:
      return "most";
  }
  return "unknown";
}

/// The local time of a moment of CLOCK_MONOTONIC, as the process itself had both.
std::string time_text(const CounterSnapshot& snapshot, int64_t monotonic_ns) {
  constexpr int64_t second = 1'000'000'000;
  // A damaged file may hold any numbers.
  const auto ns = static_cast<int64_t>(static_cast<uint64_t>(snapshot.created_realtime_ns) +
                                       static_cast<uint64_t>(monotonic_ns) -
                                       static_cast<uint64_t>(snapshot.created_ns));
  const time_t seconds = ns / second;
  tm parts{};
  char text[64] = "?";
  if (localtime_r(&seconds, &parts) != nullptr) {
    strftime(text, sizeof text, "%F %T", &parts);
  }
  return fmt::format("{}.{:06}", text, ns < 0 ? 0 : ns % second / 1000);
}

json scopes_json(const CounterSnapshot& snapshot) {
  json scopes = json::object();
  for (const CounterSnapshot::Scope& scope : snapshot.scopes) {
    json counters = json::object();
    for (const CounterSnapshot::Name& name : scope.counters) {
      counters[name.name] = {
          {"unit", name.unit}, {"help", name.help}, {"kind", to_text(name.kind)}};
    }
    scopes[scope.name] = {{"help", scope.help}, {"counters", counters}};
  }
  return scopes;
}

json blocks_json(const CounterSnapshot& snapshot) {
  json blocks = json::array();
  for (const CounterSnapshot::Block& block : snapshot.blocks) {
    const CounterSnapshot::Scope& scope = snapshot.scopes[block.scope];
    json counters = json::object();
    for (size_t i = 0; i < block.values.size(); ++i) {
      counters[scope.counters[i].name] = block.values[i];
    }
    blocks.push_back({{"id", block.id},
                      {"parent", block.parent},
                      {"scope", scope.name},
                      {"label", block.label},
                      {"ended", block.ended},
                      {"began", time_text(snapshot, block.began_ns)},
                      {"counters", counters}});
  }
  return blocks;
}

json recorders_json(const CounterSnapshot& snapshot) {
  json recorders = json::array();
  for (const CounterSnapshot::Ring& ring : snapshot.rings) {
    json events = json::array();
    for (const RecordedEvent& event : ring.events) {
      const CounterSnapshot::EventKind& kind = snapshot.kind_of(event);
      json one{{"time_ns", event.time_ns}, {"name", kind.name}, {"actor", event.actor}};
      for (const CounterSnapshot::Field& field : kind.fields) {
        one[field.name] = value_of(event, field.word, field.shift, field.bits);
      }
      events.push_back(std::move(one));
    }
    recorders.push_back({{"owner", ring.owner},
                         {"written", ring.written},
                         {"capacity", ring.capacity},
                         {"events", std::move(events)}});
  }
  return recorders;
}

json file_json(const ProcessCounterFile& file) {
  const CounterSnapshot& snapshot = file.snapshot;
  return {{"file", file.path},
          {"running", file.running},
          {"pid", snapshot.pid},
          {"program", snapshot.program},
          {"build", snapshot.build},
          {"created", time_text(snapshot, snapshot.created_ns)},
          {"created_ns", snapshot.created_ns},
          {"scopes", scopes_json(snapshot)},
          {"blocks", blocks_json(snapshot)},
          {"recorders", recorders_json(snapshot)}};
}

/// A file as a tree of its blocks.
class Table {
 public:
  explicit Table(const CounterSnapshot& snapshot) : snapshot_(snapshot) {
    for (const CounterSnapshot::Block& block : snapshot.blocks) {
      if (!block.ended) {
        live_.insert(block.id);
      }
    }
  }

  void print() const {
    for (const CounterSnapshot::Block& block : snapshot_.blocks) {
      if (!block.ended && !has_parent(block)) {
        print_block(block, 0);
      }
    }
    if (const size_t ended = snapshot_.blocks.size() - live_.size(); ended != 0) {
      fmt::print("\n{} blocks of what has ended are left out (--json has them)\n", ended);
    }
  }

 private:
  /// Parents are older: what a damaged file says does not go round.
  bool has_parent(const CounterSnapshot::Block& block) const {
    return block.parent < block.id && live_.contains(block.parent);
  }

  void print_block(const CounterSnapshot::Block& block, size_t depth) const {
    const CounterSnapshot::Scope& scope = snapshot_.scopes[block.scope];
    const std::string indent(2 * depth, ' ');
    fmt::print("\n{}{} {}: {}\n", indent, scope.name, block.id, block.label);
    for (size_t i = 0; i < block.values.size(); ++i) {
      const CounterSnapshot::Name& name = scope.counters[i];
      if (block.values[i] != 0) {
        fmt::print("{}  {:<20} {:>16} {:<12} {}\n", indent, name.name, block.values[i], name.unit,
                   name.help);
      }
    }
    for (const CounterSnapshot::Ring& ring : snapshot_.rings) {
      if (ring.owner == block.id) {
        print_ring(ring, indent);
      }
    }
    for (const CounterSnapshot::Block& below : snapshot_.blocks) {
      if (!below.ended && below.parent == block.id && has_parent(below)) {
        print_block(below, depth + 1);
      }
    }
  }

  void print_ring(const CounterSnapshot::Ring& ring, const std::string& indent) const {
    const auto& events = ring.events;
    fmt::print("{}  flight recorder: {} events, {} of them still there{}\n", indent, ring.written,
               events.size(), events.empty() ? "" : "; the last:");
    for (size_t i = events.size() - std::min(events.size(), events_shown); i < events.size(); ++i) {
      const RecordedEvent& event = events[i];
      const CounterSnapshot::EventKind& kind = snapshot_.kind_of(event);
      fmt::print("{}    {}  {} actor {}", indent, time_text(snapshot_, event.time_ns), kind.name,
                 event.actor);
      for (const CounterSnapshot::Field& field : kind.fields) {
        fmt::print(" {} {}", field.name, nccl_ha::to_text(field, event));
      }
      fmt::print("\n");
    }
  }

  const CounterSnapshot& snapshot_;
  std::set<uint64_t> live_;
};

void print_file(const ProcessCounterFile& file) {
  const CounterSnapshot& snapshot = file.snapshot;
  fmt::print("process {} ({}), nccl-ha {}: {}\n  {}, since {}\n", snapshot.pid, snapshot.program,
             snapshot.build, file.running ? "it runs" : "it is gone, and these are its last values",
             file.path, time_text(snapshot, snapshot.created_ns));
  fmt::print("  counters that are 0 are left out (--json has them)\n");
  Table(snapshot).print();
}

}  // namespace

void show_counters(uint32_t pid, const std::string& directory, bool as_json) {
  if (directory.empty()) {
    refuse_counters(fail(Errc::invalid_argument,
                         "HA_NCCL_COUNTERS_DIR is empty here: set it as the process has it"));
  }
  const auto files = refuse_counters.need(read_counters_of(pid, directory));
  if (as_json) {
    json all = json::array();
    for (const ProcessCounterFile& file : files) {
      all.push_back(file_json(file));
    }
    print_document(document("info --pid", {{"files", all}}));
    return;
  }
  for (const ProcessCounterFile& file : files) {
    fmt::print("{}", &file == files.data() ? "" : "\n");
    print_file(file);
  }
}

}  // namespace nccl_ha::tools
