// The file in which the transport agent of a host says how each flow's data is to be split over two
// rails: all that its writer and its readers agree on (docs/agent-protocol.md).
//
//   FileHeader | Slot...
//
// All numbers have the byte order of the host.  What is written while others have it mapped
// consists of atomics; version changes when something here gets another meaning.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nccl_ha::hint_layout {

inline constexpr std::array<char, 8> magic = {'n', 'h', 'a', 'h', 'i', 'n', 't', '\0'};
inline constexpr uint32_t version = 1;
/// Its name in the agent's directory.
inline constexpr const char* file_name = "hints";

/// The share of a flow that is all of it.
inline constexpr uint32_t whole = 1024;

struct FileHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t file_bytes;
  uint64_t generation;     ///< of the agent that made the file: random, never 0
  int64_t created_ns;      ///< CLOCK_MONOTONIC
  uint64_t process_start;  ///< clock ticks after the host's start (proc(5)); 0: unknown
  uint32_t pid;
  uint32_t slots;
  uint32_t slot_bytes;
  uint32_t heartbeat_ms;  ///< how often the agent means to give one
  /// CLOCK_MONOTONIC of the last heartbeat.
  alignas(64) std::atomic<uint64_t> heartbeat_ns;
};
static_assert(sizeof(FileHeader) == 128 && offsetof(FileHeader, pid) == 48 &&
              offsetof(FileHeader, heartbeat_ns) == 64);

enum Flag : uint32_t {
  /// A path of the flow is congested so much that it gets nothing.
  backpressure = 1,
  /// No telemetry says anything of the flow, or none has lately: the share is a guess.
  untold = 2,
};

/// What is said of one flow.  All but `sequence` change under it, which is odd meanwhile: who reads
/// the same even number before and after has read one state.
struct alignas(64) Slot {
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> flow;        ///< flow_hash() of the flow it is for; 0: nobody's
  std::atomic<uint64_t> hint;        ///< share of the second rail, parts per 1024 | flags << 32
  std::atomic<uint64_t> changed_ns;  ///< CLOCK_MONOTONIC, when the hint last became another one
};
static_assert(sizeof(Slot) == 64);
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);

}  // namespace nccl_ha::hint_layout
