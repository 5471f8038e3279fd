// Reads what processes keep of their counters and flight recorders
// (runtime/telemetry/counter_layout.h), while they run and after they were killed.  Nothing that is
// read is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/telemetry/counter_layout.h"
#include "runtime/telemetry/counters.h"
#include "runtime/telemetry/recorder.h"

namespace nccl_ha {

/// All that a file says, as of one moment for each block.
struct CounterSnapshot {
  struct Name {
    std::string name;
    std::string unit;
    std::string help;
    CounterKind kind = CounterKind::sum;
  };
  struct Scope {
    std::string name;
    std::string help;
    std::vector<Name> counters;
  };
  struct Block {
    uint64_t id = 0;
    uint64_t parent = 0;
    size_t scope = 0;    ///< in `scopes`
    bool ended = false;  ///< given back; these are the last values
    int64_t began_ns = 0;
    std::string label;
    std::vector<uint64_t> values;  ///< as many as the scope has counters
  };
  /// What an event of the recorder is called and holds, by the file.
  struct Field {
    std::string name;
    std::string unit;
    std::vector<std::string> values;  ///< names, from 0 on
    uint8_t word = 0;                 ///< where it is in an event (value_of())
    uint8_t shift = 0;
    uint8_t bits = 0;
  };
  struct EventKind {
    std::string name;
    std::string help;
    std::vector<Field> fields;
  };
  struct Ring {
    uint64_t owner = 0;  ///< id of the worker's or caller's block
    uint64_t written = 0;
    uint64_t capacity = 0;
    std::vector<RecordedEvent> events;  ///< those that are still there, oldest first
  };

  uint32_t pid = 0;
  uint32_t instance = 0;
  int64_t created_realtime_ns = 0;
  int64_t created_ns = 0;  ///< of CLOCK_MONOTONIC, as all other times
  std::string build;
  std::string program;
  std::string host;
  uint64_t clock = 0;              ///< alike where created_ns is of the same clock; 0: unknown
  int64_t dumped_realtime_ns = 0;  ///< 0: no dump, but the file of a process
  int64_t dumped_ns = 0;
  std::string reason;  ///< of a dump
  std::vector<Scope> scopes;
  std::vector<EventKind> kinds;
  std::vector<Block> blocks;  ///< in the order of their ids; none that changed all the time
  std::vector<Ring> rings;

  /// Of an event that this file does not describe: one without a name.
  const EventKind& kind_of(const RecordedEvent& event) const;
};

/// What a field holds, with its unit or the name of its value.
std::string to_text(const CounterSnapshot::Field& field, const RecordedEvent& event);

/// What is read of a file.
enum class EventsWanted : uint8_t { no, yes };

/// `bytes` may be written to meanwhile and is aligned to 64, as a mapping is.
Result<CounterSnapshot> parse_counters(std::span<const std::byte> bytes,
                                       EventsWanted events = EventsWanted::yes);

/// The same of what is damaged or was cut off: what can be read of it, and in `damages` what not.
/// Without a header that can be read: an error.
Result<CounterSnapshot> salvage_counters(std::span<const std::byte> bytes,
                                         std::vector<std::string>& damages);

/// The header of a file, if it is one of this layout; else what is wrong with it.
Result<counter_layout::FileHeader> parse_counter_header(std::span<const std::byte> bytes);

struct CounterFileFound {
  std::string path;
  uint32_t pid = 0;     ///< by its name
  bool good = false;    ///< its header is one of this layout
  bool running = true;  ///< the process that made it may still be there
  int64_t made_ns = 0;  ///< CLOCK_REALTIME
  uint64_t bytes = 0;
};
/// Whose files are looked for.  Of others, whom root may read, those count that only their owner
/// may read and whose owner is that of the process they name: nobody speaks for another user's
/// process.
enum class CounterOwner : uint8_t { this_user, anybody };
/// Those in a directory; also what was left in the middle of making one.
std::vector<CounterFileFound> find_counter_files(const std::string& directory,
                                                 CounterOwner owner = CounterOwner::this_user);

struct ProcessCounterFile {
  std::string path;
  bool running = false;  ///< false: the process is gone, and these are its last values
  CounterSnapshot snapshot;
};
/// All files of a process, which may be gone.  None, or one of this user that cannot be read: an
/// error that says why.  While the process runs, files of others than its owner are left out.
Result<std::vector<ProcessCounterFile>> read_counters_of(uint32_t pid, const std::string& directory,
                                                         EventsWanted events = EventsWanted::yes);
/// One file, by its name.
Result<ProcessCounterFile> read_counter_file(const std::string& path,
                                             EventsWanted events = EventsWanted::yes);

}  // namespace nccl_ha
