// Datagrams under way to one socket of a simulated network, and how a PacketIo hands them over.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/fabric/packet_io.h"

namespace nccl_ha::sim {

struct Packet {
  Instant due;
  std::vector<std::byte> bytes;
};
using PacketQueue = std::deque<Packet>;

/// Hands packets that are due to the sink, as a socket would: those of the data channel in runs of
/// equal size (receive offload).  Returns how many calls of the network that took.
size_t deliver(PacketQueue& queue, fabric::Channel channel, fabric::PacketSink& sink, size_t limit,
               Instant now);

}  // namespace nccl_ha::sim
