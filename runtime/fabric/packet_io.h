// Unreliable datagrams as the engine sees them: UDP sockets, UD queue pairs, or a test's network.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/fabric/socket_address.h"

namespace nccl_ha::fabric {

/// The two queue pairs of the usnic design.  The command channel is short and its packets are
/// small, so acknowledgements and tiny messages overtake bulk data.
enum class Channel : uint8_t { command = 0, data = 1 };
inline constexpr size_t channel_count = 2;

/// One datagram to send, or a run of datagrams of `segment_bytes` each (the last may be shorter)
/// when segment_bytes is not 0 (UDP segmentation offload).
struct OutDatagram {
  const SocketAddress* to = nullptr;
  iovec* parts = nullptr;
  size_t part_count = 0;
  uint16_t segment_bytes = 0;
  bool probe = false;  ///< may exceed the path MTU known to the kernel; must not be fragmented
};

/// Cuts what a PacketIo is asked to send into datagrams and gives each to `transmit(bytes)`.
template <class Transmit>
void split_datagram(const OutDatagram& datagram, Transmit&& transmit) {
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

/// Where the rest of a packet goes, decided after a look at its first bytes.
struct Placement {
  iovec* parts = nullptr;
  size_t part_count = 0;  ///< 0: no direct place, deliver through packet()
};

/// Receives what a PacketIo reads.
class PacketSink {
 public:
  virtual ~PacketSink() = default;
  /// `head` holds the first bytes (at least a frame header if the packet has one), `total` the
  /// length of the datagram or of the coalesced run of datagrams of `segment` bytes each.
  virtual Placement place(std::span<const std::byte> head, size_t total, size_t segment) = 0;
  /// The packet announced by the last place() has been read to where it asked.
  virtual void placed(size_t total) = 0;
  /// A whole datagram in a buffer of the provider, valid during the call.
  virtual void packet(std::span<const std::byte> datagram) = 0;
};

/// Owned and called by one worker.
class PacketIo {
 public:
  virtual ~PacketIo() = default;
  /// Sends in order; returns how many of `out` left.  Fewer than given: the rest was not sent
  /// (queue full) and is the caller's to send again.  A datagram that the network cannot take at
  /// all (too large, no route) counts as sent and lost.
  virtual size_t send(Channel channel, std::span<OutDatagram> out) = 0;
  /// Reads at most `limit` packets into the sink; returns how many.
  virtual size_t receive(Channel channel, PacketSink& sink, size_t limit) = 0;
  using Channels = std::array<bool, channel_count>;
  /// Where receive() might find something; for those who look now and then.
  virtual Channels waiting() { return {true, true}; }
  /// Called once per pass with the time; lets delayed packets go.
  virtual void tick(Instant now) { (void)now; }

  /// How what is sent to a peer leaves this host.
  struct Egress {
    bool by_own_nic = false;  ///< for SocketAddress::by_own_nic of the peer
    std::string other_nic;    ///< by this interface, not by that of the local address
  };
  /// Asked once for each path, which may be there because the way to the peer was lost; `peer` is
  /// the other end's data channel.
  virtual Egress egress(const SocketAddress& peer) {
    (void)peer;
    return {};
  }

  virtual SocketAddress local(Channel channel) const = 0;
  virtual size_t receive_buffer_bytes() const = 0;
  virtual bool segmentation_offload() const = 0;
  /// The largest datagram that send() takes.
  virtual size_t datagram_bytes_max() const { return 65507; }
  /// The worker is about to wait on the descriptors.  False: there is something to do first.
  virtual bool prepare_sleep() { return true; }
  /// File descriptors that become readable when packets wait; -1 where there is none.  They stay
  /// what they are, or end all together.
  virtual int wait_fd(Channel channel) const = 0;
  virtual uint64_t kernel_drops() const { return 0; }
  /// Nothing moves here any more, now and later, or not by the addresses that this host has now:
  /// who needs packets from now on makes another one.  Those who have this one keep it.
  virtual bool broken() { return false; }
};

}  // namespace nccl_ha::fabric
