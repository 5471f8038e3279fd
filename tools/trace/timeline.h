// What the flight recorders of one or more processes say, on one clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/telemetry/counter_reader.h"
#include "tools/trace/clocks.h"

namespace nccl_ha::tools {

/// A dump, or the file of a process.
struct TraceSource {
  std::string name;  ///< of the file, for messages
  CounterSnapshot snapshot;
  std::vector<std::string> damages;  ///< what could not be read
};

/// One event, on the common clock.
struct TraceMoment {
  int64_t time_ns = 0;
  uint32_t process = 0;     ///< in Timeline::processes
  uint32_t thread = 0;      ///< among the rings of the process
  int32_t connection = -1;  ///< in Timeline::connections; -1: none
  /// What this program knows it as; none when the file comes from one that knows others.
  std::optional<TraceEvent> event;
  RecordedEvent raw;
};

/// Who wrote a ring.
struct TraceThread {
  std::string name;     ///< "worker 0", "caller 4711 (python)"
  bool caller = false;  ///< of NCCL's entry points
};

/// One side of a connection.
struct TraceConnection {
  uint32_t process = 0;
  uint64_t block = 0;  ///< id of its counters
  uint64_t key = 0;    ///< the same at the peer; 0: unknown
  uint64_t actor = 0;
  uint32_t worker = 0;  ///< among the rings of the process
  bool sender = false;
  bool ended = false;
  int64_t began_ns = 0;  ///< of its process's clock, as the next two
  int64_t said_ns = 0;
  int64_t heard_ns = 0;
  std::string label;
  std::map<uint32_t, std::string> paths;  ///< by number
  int32_t peer = -1;                      ///< the other side, if it is here too
  std::string path_name(uint32_t path) const;
};

class Timeline {
 public:
  /// Processes on the clock of the one that has recorded most, as far as they can be compared.
  static Timeline of(std::vector<TraceSource> sources);

  const std::vector<TraceSource>& processes() const { return processes_; }
  const std::vector<TraceConnection>& connections() const { return connections_; }
  const TraceConnection& connection(int32_t index) const {
    return connections_[static_cast<size_t>(index)];
  }
  const std::vector<TraceMoment>& moments() const { return moments_; }  ///< by time
  const TraceThread& thread(const TraceMoment& moment) const {
    return threads_[moment.process][moment.thread];
  }
  const std::vector<TraceThread>& threads(uint32_t process) const { return threads_[process]; }
  const ClockTable& clocks() const { return clocks_; }

  /// "host:pid".
  std::string process_name(uint32_t process) const;
  /// The kind as its file describes it.
  const CounterSnapshot::EventKind& kind(const TraceMoment& moment) const {
    return processes_[moment.process].snapshot.kind_of(moment.raw);
  }
  /// Of a field by its name; none if the event has no such field.
  std::optional<uint64_t> value(const TraceMoment& moment, std::string_view field) const;
  /// CLOCK_REALTIME of a moment, as the process had it whose clock is the common one.
  int64_t realtime_ns(int64_t time_ns) const;
  /// The same as local date and time.
  std::string date(int64_t time_ns) const;
  int64_t begin_ns() const { return moments_.empty() ? 0 : moments_.front().time_ns; }
  int64_t end_ns() const { return moments_.empty() ? 0 : moments_.back().time_ns; }
  /// The last event of a process; 0 if it has none.
  int64_t end_ns(uint32_t process) const { return ends_[process]; }

 private:
  void find_threads(uint32_t process);
  void find_connections(uint32_t process);
  void find_peers();
  void add_moments(uint32_t process);
  void compare_clocks();
  void align();

  std::vector<TraceSource> processes_;
  std::vector<std::vector<TraceThread>> threads_;  ///< of each process, a ring each
  std::vector<TraceConnection> connections_;
  std::vector<TraceMoment> moments_;
  std::vector<int64_t> ends_;  ///< of each process
  ClockTable clocks_;
  /// Of each process: what its kinds of events are here.
  std::vector<std::vector<std::optional<TraceEvent>>> known_;
};

/// How wide the columns of a table are that name processes, their connections and paths.
struct NameWidths {
  size_t process = 7;
  size_t connection = 10;
  size_t path = 4;
};
NameWidths name_widths(const Timeline& timeline);

/// A number of the counters of a block, by name; 0 when there is none.
uint64_t counter_of(const CounterSnapshot& snapshot, const CounterSnapshot::Block& block,
                    std::string_view counter);

/// "12.3 us" and the like.
std::string duration_text(int64_t ns);
std::string bytes_text(uint64_t bytes);

}  // namespace nccl_ha::tools
