// A request of the caller's: what it wants, how far it is, what came of it.  Each field has one
// writer; the slots live in a channel and are used again.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "actors/request_limits.h"
#include "ha/chunk_split.h"
#include "ha/ledger.h"
#include "ha/rails.h"

namespace nccl_ha {

/// Of a buffer on the devices of the other rails, in their order; 0: not known there.
using RailKeys = std::array<uint32_t, ha::device_rails_max - 1>;

enum class RequestState : uint32_t { free, pending, done };

class Channel;
class Driver;

/// Head of every request: what test() looks at.
struct alignas(64) Request {
  std::atomic<RequestState> state{RequestState::free};
  uint16_t index = 0;
  bool is_send = false;
  uint8_t count = 1;
  Channel* channel = nullptr;               ///< that it belongs to
  Driver* driver = nullptr;                 ///< of that; test() is given nothing else
  std::array<uint32_t, group_max> bytes{};  ///< result: bytes moved per position
};

struct SendRequest : Request {
  const std::byte* data = nullptr;
  uint32_t size = 0;
  uint32_t key = 0;
  uint64_t group = 0;
  uint32_t position = 0;
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  RailKeys rail_keys{};
  RailKeys remote_rail_keys{};
  bool no_speculative_placement = false;
  bool host_memory = true;
  // the actor's
  ha::ChunkSplit split;
  ha::ChunkLedger ledger;
};

struct ReceiveRequest : Request {
  struct Buffer {
    std::byte* data = nullptr;
    uint32_t size = 0;
    uint32_t key = 0;
    int tag = 0;
    RailKeys rail_keys{};
  };
  std::array<Buffer, group_max> buffers{};
  bool polled = false;
  bool is_flush = false;  ///< no receive: makes earlier ones visible to the GPU (buffers[0])
  // the actor's
  bool flush_lost = false;  ///< on one of the NICs that were asked, or were to be
  uint64_t group = 0;
  uint32_t missing = 0;                          ///< positions
  std::array<uint16_t, group_max> arrived{};     ///< chunks of each position, a bit each
  std::array<uint8_t, group_max> chunk_count{};  ///< of each position; 0: not known yet
};

}  // namespace nccl_ha
