// The file in which a process keeps its counters and flight recorders: all that writers and readers
// agree on.
//
//   FileHeader | ScopeEntry... | CounterEntry... | EventEntry... | FieldEntry... | strings |
//   Block... | Ring... | RingSlot... of each ring
//
// A dump (runtime/telemetry/trace_dump.h) is a copy of it without what was never used.
//
// Names, units and help are in the file, so that a reader of another build understands it.  All
// numbers have the byte order of the host.  What is mapped by others while it is written consists
// of atomics; version changes when something here gets another meaning.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nccl_ha::counter_layout {

inline constexpr std::array<char, 8> magic = {'n', 'h', 'a', 'c', 'n', 't', 'r', '\0'};
inline constexpr uint32_t version = 2;

/// Where a table is.
struct Section {
  uint64_t offset;       ///< from the beginning of the file, a multiple of 8
  uint32_t count;        ///< entries; of strings: bytes
  uint32_t entry_bytes;  ///< at least what this version knows of an entry; of strings: 1
};

struct FileHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t file_bytes;
  uint64_t pid_namespace;       ///< inode of /proc/self/ns/pid; 0: unknown
  uint64_t process_start;       ///< clock ticks after the host's start (proc(5)); 0: unknown
  int64_t created_realtime_ns;  ///< CLOCK_REALTIME, and
  int64_t created_ns;           ///< at the same moment CLOCK_MONOTONIC, which all times are of
  uint32_t pid;
  uint32_t instance;  ///< among the files of this process
  std::array<char, 32> build;
  std::array<char, 32> program;
  std::array<char, 64> host;
  uint64_t clock;                ///< alike where CLOCK_MONOTONIC is the same clock; 0: unknown
  int64_t dumped_realtime_ns;    ///< of a dump: CLOCK_REALTIME, and
  int64_t dumped_ns;             ///< CLOCK_MONOTONIC; 0: this is no dump
  std::array<char, 104> reason;  ///< of a dump
  Section scopes;
  Section counters;
  Section events;
  Section fields;
  Section strings;
  Section blocks;
  Section rings;
};
static_assert(sizeof(Section) == 16 && sizeof(FileHeader) == 432 &&
              offsetof(FileHeader, pid) == 56 && offsetof(FileHeader, host) == 128 &&
              offsetof(FileHeader, scopes) == 320);

// Texts are offsets into the strings, each of which ends with a NUL.
struct ScopeEntry {
  uint32_t name;
  uint32_t help;
  uint32_t first;  ///< of its counters
  uint32_t count;  ///< at most values_max
};
struct CounterEntry {
  uint32_t name;
  uint32_t unit;
  uint32_t help;
  uint32_t kind;  ///< CounterKind
};
/// What the flight recorder's events are called.
struct EventEntry {
  uint32_t name;
  uint32_t help;
  uint32_t first;  ///< of its fields
  uint32_t count;  ///< at most fields_max
};
struct FieldEntry {
  uint32_t name;
  uint32_t unit;
  uint32_t values;  ///< names separated by |, from 0 on
  uint32_t where;   ///< word of the slot | lowest bit << 8 | bits << 16
};
inline constexpr size_t fields_max = 8;
static_assert(sizeof(FieldEntry) == 16);
static_assert(sizeof(ScopeEntry) == 16 && sizeof(CounterEntry) == 16 && sizeof(EventEntry) == 16);

enum class BlockState : uint8_t {
  empty,  ///< never used
  live,
  ended,  ///< given back; its last values stay until it is used again, which is as late as can be
};

inline constexpr size_t label_words = 11;
inline constexpr size_t label_bytes = label_words * 8;
inline constexpr size_t values_max = 32;

/// The counters of one thing.  All but the values change under `sequence`, which is odd meanwhile:
/// who reads the same even number before and after has read one state.  A block that is used again
/// has another id.
struct alignas(64) Block {
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> id;                              ///< from 1 on; none is used twice
  std::atomic<uint64_t> parent;                          ///< id of another block; 0: none
  std::atomic<uint64_t> what;                            ///< scope | BlockState << 32
  std::atomic<uint64_t> began_ns;                        ///< CLOCK_MONOTONIC
  std::array<std::atomic<uint64_t>, label_words> label;  ///< text, padded with zeros
  std::array<std::atomic<uint64_t>, values_max> values;  ///< in the order of the scope's counters
};
static_assert(sizeof(Block) == 384 && offsetof(Block, label) == 40 &&
              offsetof(Block, values) == 128);

/// An event.  `version` is odd while it is written, and 2n + 2 for event number n.
struct RingSlot {
  std::atomic<uint64_t> version;
  std::array<std::atomic<uint64_t>, 4> words;  ///< time; actor << 32 | c << 16 | event; a; b
};
static_assert(sizeof(RingSlot) == 40);

/// A flight recorder: the last events of a thread.
struct alignas(64) Ring {
  std::atomic<uint64_t>
      written;                  ///< events since the beginning; number n lies in slot n % capacity
  uint64_t capacity;            ///< slots, a power of two
  uint64_t slots_offset;        ///< from the beginning of the file
  std::atomic<uint64_t> owner;  ///< id of the worker's or caller's block; 0: not in use
};
static_assert(sizeof(Ring) == 64 && offsetof(Ring, owner) == 24);

static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);

}  // namespace nccl_ha::counter_layout
