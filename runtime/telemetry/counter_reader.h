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
  struct Event {
    int64_t time_ns = 0;
    uint32_t actor = 0;
    std::string name;
    uint64_t a = 0;
    uint64_t b = 0;
    std::string a_name;  ///< what `a` holds; empty: nothing
    std::string b_name;
  };
  struct Ring {
    uint64_t owner = 0;  ///< id of the worker's block
    uint64_t written = 0;
    uint64_t capacity = 0;
    std::vector<Event> events;  ///< those that are still there, oldest first
  };

  uint32_t pid = 0;
  uint32_t instance = 0;
  int64_t created_realtime_ns = 0;
  int64_t created_ns = 0;  ///< of CLOCK_MONOTONIC, as all other times
  std::string build;
  std::string program;
  std::vector<Scope> scopes;
  std::vector<Block> blocks;  ///< in the order of their ids; none that changed all the time
  std::vector<Ring> rings;
};

/// `bytes` may be written to meanwhile and is aligned to 64, as a mapping is.
Result<CounterSnapshot> parse_counters(std::span<const std::byte> bytes);

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
/// Those in a directory that belong to this user; also what was left in the middle of making one.
std::vector<CounterFileFound> find_counter_files(const std::string& directory);

struct ProcessCounterFile {
  std::string path;
  bool running = false;  ///< false: the process is gone, and these are its last values
  CounterSnapshot snapshot;
};
/// All files of a process, which may be gone.  None, or one that cannot be read: an error that says
/// why.
Result<std::vector<ProcessCounterFile>> read_counters_of(uint32_t pid,
                                                         const std::string& directory);

}  // namespace nccl_ha
