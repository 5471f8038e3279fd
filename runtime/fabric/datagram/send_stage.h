// Datagrams of a port that are being gathered, and the way out.  One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/fabric/datagram/frame_seal.h"
#include "runtime/fabric/datagram/segment.h"
#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/packet_io.h"
#include "runtime/telemetry/counters.h"

namespace nccl_ha::fabric {

/// Datagrams being gathered for one channel, sent with one call.
struct SendBatch {
  static constexpr size_t messages_max = 16;
  static constexpr size_t frames_max = 192;       ///< several whole runs of small packets
  static constexpr size_t datagram_bytes = 1216;  ///< of the command channel, fits any IPv6 path

  bool empty() const { return count == 0; }

  std::array<OutDatagram, messages_max> messages;
  std::array<iovec, frames_max * 4> parts;
  size_t part_count = 0;
  size_t count = 0;
  // Command channel: frames are copied; data channel: headers only, payload stays in place.
  std::array<std::array<std::byte, datagram_bytes>, messages_max> copies;
  std::array<std::array<std::byte, header_bytes>, frames_max> headers;
  std::array<std::array<std::byte, seal_bytes>, frames_max> seals;
  std::array<Segment*, frames_max> segments;   ///< data channel: whose frame it is
  std::array<uint8_t, frames_max> message_of;  ///< data channel: which message it went into
  size_t frame_count = 0;
  std::array<size_t, messages_max> message_bytes;
};

/// Called inside the port's memory guard: frames of the data channel point into users' memory until
/// they are flushed.
class SendStage {
 public:
  /// `offload`: runs may be handed to the kernel whole, where it can cut them.
  SendStage(std::unique_ptr<PacketIo> io, bool offload, DatagramPortCounters& statistics);
  SendStage(const SendStage&) = delete;
  SendStage& operator=(const SendStage&) = delete;

  /// `to` stays where it is until the next flush.  Of a path's data channel it is that path's own:
  /// equal segments of one path follow each other in one run.  `seal`: the path's, which is used
  /// at once; null: it has none.
  void command(const SocketAddress& to, FrameHeader header, std::span<const std::byte> payload,
               FrameSeal* seal);
  void data(const SocketAddress& to, Segment& segment, FrameHeader header,
            std::span<const iovec> payload, FrameSeal* seal);
  /// The last run goes there, and one more of its segments would still be part of it.
  bool run_grows(const SocketAddress& to) const;
  /// A path with encryption comes.  Throws std::bad_alloc, and nothing has changed.
  void prepare_encryption();
  /// Sent at once, in a datagram of its own; false: it did not leave.
  bool probe(const SocketAddress& to, FrameHeader header, FrameSeal* seal);
  /// Segments that the kernel did not take are given back to their paths, to be sent again.
  void flush(Channel channel);

  bool empty() const { return command_.empty() && data_.empty(); }
  bool any_command() const { return !command_.empty(); }
  /// A datagram of the command channel goes there, and could take more along.
  bool any_command_goes_to(const SocketAddress& to) const { return last_to(to) != command_.count; }
  /// The largest datagram of the command channel.
  size_t command_bytes() const { return command_bytes_; }
  PacketIo& io() const { return *io_; }

 private:
  /// The last datagram of the command channel that goes there; their number if none does.
  size_t last_to(const SocketAddress& to) const;
  bool run_takes(const SocketAddress& to, size_t bytes) const;
  iovec encrypted(std::span<const std::byte> header, std::span<const iovec> payload, size_t bytes,
                  FrameSeal& seal);

  std::unique_ptr<PacketIo> io_;
  DatagramPortCounters& statistics_;
  size_t command_bytes_;
  bool offload_;
  SendBatch command_;
  SendBatch data_;
  std::vector<std::byte> probe_;
  std::vector<std::byte> encrypted_;  // payload that is staged, where it is encrypted
  size_t encrypted_bytes_ = 0;
};

}  // namespace nccl_ha::fabric
