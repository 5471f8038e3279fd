// Datagrams under way to one socket of a simulated network, and how a PacketIo hands them over.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <vector>

#include "runtime/clock.h"
#include "runtime/fabric/datagram/packet_io.h"

namespace nccl_ha::sim {

struct Packet {
  Instant due;
  std::vector<std::byte> bytes;
};
using PacketQueue = std::deque<Packet>;

/// Cuts what a PacketIo is asked to send into datagrams and gives each to `transmit(bytes)`.
template <class Transmit>
void split_datagram(const fabric::OutDatagram& datagram, Transmit&& transmit) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < datagram.part_count; ++i) {
    const auto* from = static_cast<const std::byte*>(datagram.parts[i].iov_base);
    bytes.insert(bytes.end(), from, from + datagram.parts[i].iov_len);
  }
  const size_t step = datagram.segment_bytes == 0 ? bytes.size() : datagram.segment_bytes;
  for (size_t offset = 0; offset < bytes.size(); offset += step) {
    const size_t end = std::min(bytes.size(), offset + step);
    transmit(std::vector(bytes.begin() + static_cast<ptrdiff_t>(offset),
                         bytes.begin() + static_cast<ptrdiff_t>(end)));
  }
}

/// Hands packets that are due to the sink, as a socket would: those of the data channel in runs of
/// equal size (receive offload).  Returns how many calls of the network that took.
size_t deliver(PacketQueue& queue, fabric::Channel channel, fabric::PacketSink& sink, size_t limit,
               Instant now);

}  // namespace nccl_ha::sim
