// What a profiler plugin of NCCL is told of a transfer (docs/profiler.md).
//
// NCCL passes it as netPlugin.data: to startEvent() with an event of type ncclProfileNetPlugin
// whose netPlugin.id is profiler_id, and once more to recordEventState() just before the event
// stops.  It is valid during that call.  Fields are only ever added at the end, under a new
// version.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nccl_ha::abi {

/// NCCL keeps the lower 16 bits of an id for a version.  Its own transports have the bits 1 (IB)
/// and 2 (sockets) above them; "NH" has neither, whether they are compared or tested.
inline constexpr int64_t profiler_version = 1;
inline constexpr int64_t profiler_type = int64_t{0x4E48} << 16;
inline constexpr int64_t profiler_id = profiler_type | profiler_version;
static_assert((profiler_type & (3 << 16)) == 0);

enum class TransferKind : uint8_t { send = 1, receive = 2 };
enum class TransferState : uint8_t { posted = 0, done = 1, failed = 2 };
/// What the connection's own paths lead over.
enum class TransferFabric : uint8_t { udp = 1, rdma = 2, rdma_datagrams = 3 };

struct TransferV1 {
  TransferKind kind;
  TransferState state;
  TransferFabric fabric;
  uint8_t position;  ///< in a receive of several buffers, each of which is an event
  int32_t device;    ///< NCCL's number of it
  int32_t tag;
  uint32_t failovers;   ///< paths of this connection that were given up so far
  uint64_t connection;  ///< no other connection of this process has it
  uint64_t bytes;       ///< receive: the buffer's, and once it is done those that came
};
static_assert(sizeof(TransferV1) == 32 && offsetof(TransferV1, position) == 3 &&
              offsetof(TransferV1, device) == 4 && offsetof(TransferV1, tag) == 8 &&
              offsetof(TransferV1, failovers) == 12 && offsetof(TransferV1, connection) == 16 &&
              offsetof(TransferV1, bytes) == 24);

}  // namespace nccl_ha::abi
