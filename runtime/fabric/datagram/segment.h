// What fits in one packet.  It keeps no copy of the payload: until the acknowledgement the user's
// memory is the copy.
#pragma once

#include <cstdint>

#include "runtime/base/linked_queue.h"
#include "runtime/fabric/datagram/hotel.h"
#include "runtime/fabric/packet_io.h"

namespace nccl_ha::fabric {

class DatagramPath;

struct Segment {
  enum class State : uint8_t {
    free,
    in_flight,  ///< sent, in the hotel
    resend,     ///< in the port's resend list
    acked,      ///< acknowledged selectively, waits for the window to move
  };
  bool open() const { return state == State::in_flight || state == State::resend; }

  Room room;
  DatagramPath* path = nullptr;
  QueueLink<Segment> resends;  ///< in the resend list; it may be acknowledged meanwhile
  uint64_t order = 0;          ///< transmission number on its channel
  Instant late_until{};        ///< what is acknowledged before then was late, and not lost
  uint32_t sequence = 0;
  uint32_t request = 0;  ///< number of the work request
  uint32_t offset = 0;   ///< in the fragment
  uint16_t length = 0;
  State state = State::free;
  Channel channel = Channel::data;
};

/// Segments of a port to be sent again, in the order in which they were found lost.
using ResendList = LinkedQueue<Segment, &Segment::resends>;

}  // namespace nccl_ha::fabric
