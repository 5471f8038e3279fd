// State of the sending half of a datagram path: work requests and the segments in flight.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/fabric/datagram/hotel.h"
#include "runtime/fabric/packet_io.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::fabric {

class DatagramPath;

/// A posted write or send ("fragment" in usnic's words).
struct WorkRequest {
  uint64_t id = 0;
  CompletionKind kind = CompletionKind::write;
  uint8_t flags = 0;  ///< FrameFlag bits of its segments
  uint8_t gather_count = 0;
  Gather gathers[gathers_max];
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  uint32_t immediate = 0;
  uint32_t length = 0;
  uint32_t sent = 0;           ///< bytes given to segments so far
  uint32_t segment_bytes = 0;  ///< payload of each but the last; fixed at the first segment
  uint32_t end_sequence = 0;   ///< one behind the last segment, valid when all are sent
  bool all_sent = false;
  bool unsignaled = false;  ///< success is not reported
};

/// A segment: what fits in one packet.  It keeps no copy of the payload; until the acknowledgement
/// the user's memory is the copy.
struct Segment {
  enum class State : uint8_t {
    free,
    in_flight,  ///< sent, in the hotel
    resend,     ///< in the port's resend list
    acked,      ///< acknowledged selectively, waits for the window to move
  };
  Room room;
  DatagramPath* path = nullptr;
  Segment* resend_next = nullptr;
  uint64_t order = 0;  ///< transmission number on its channel
  uint32_t sequence = 0;
  uint32_t request = 0;  ///< index of the work request
  uint32_t offset = 0;   ///< in the fragment
  uint16_t length = 0;
  State state = State::free;
  Channel channel = Channel::data;
  bool listed = false;  ///< linked in the resend list (may be acknowledged meanwhile)
};

}  // namespace nccl_ha::fabric
