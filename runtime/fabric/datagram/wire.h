// Packet format of the datagram engine.
//
// A datagram is one or more frames back to back; several frames share a datagram only on the
// command channel.  All numbers are little-endian.  A frame is a 64-byte header and
// `payload_length` bytes:
//
//   offset  0  u16 magic         8  u64 token            32  u32 echo_us        48  u32 immediate
//           2  u8  type         16  u32 sequence         36  u16 payload_length 52  u32 key
//           3  u8  flags        20  u32 acknowledge      38  u16 fragment       56  u64 address
//           4  u32 path         24  u16 credits          40  u32 fragment_length
//                               26  u16 ack_delay_us     44  u32 fragment_offset
//                               28  u32 sent_us
//
// A frame with flag_sealed has seal_bytes more behind its payload (frame_seal.h).
//
// `path` and `token` name the receiving path; both were chosen by the receiver and told to the
// sender over the connection's control stream, so a packet of somebody else, of an earlier process
// on the port or of a closed path does not pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/secret.h"
#include "runtime/fabric/socket_address.h"

namespace nccl_ha::fabric {

inline constexpr size_t header_bytes = 64;
inline constexpr size_t seal_bytes = 24;
inline constexpr uint16_t wire_magic = 0x484E;  // version 1

enum class FrameType : uint8_t {
  put = 1,  ///< emulated RDMA write: payload belongs at `address`
  // 2 was part of a two-sided message: it is not given out again.
  ack = 3,    ///< acknowledgement only; the payload is the selective-acknowledgement bitmap
  ping = 4,   ///< connectivity check; the payload is padding, `fragment_length` the datagram's size
  pong = 5,   ///< answer to a ping; `fragment_length` repeats the size, `immediate` the attempt
  probe = 6,  ///< asks for an acknowledgement at once
  refuse = 7  ///< the receiver refuses a write (`key`, `address`): the path is in error
};

enum FrameFlag : uint8_t {
  flag_last = 1,            ///< last segment of its fragment
  flag_immediate = 2,       ///< the fragment carries an immediate (on its last segment)
  flag_no_speculation = 4,  ///< the destination is polled: see WritePost::no_speculative_placement
  flag_ack = 8,             ///< acknowledge, credits and ack_delay_us are valid
  flag_echo = 16,           ///< echo_us is valid
  flag_sealed = 32,         ///< a seal follows the payload
};

struct FrameHeader {
  FrameType type = FrameType::ack;
  uint8_t flags = 0;
  uint32_t path = 0;
  uint64_t token = 0;         ///< told() of the path's
  uint32_t sequence = 0;      ///< of this segment; in ack, ping and pong unused
  uint32_t acknowledge = 0;   ///< next sequence expected: everything below has arrived
  uint16_t credits = 0;       ///< segments that may be sent beyond `acknowledge`
  uint16_t ack_delay_us = 0;  ///< how long the receiver held the packet whose time it echoes
  uint32_t sent_us = 0;       ///< sender's clock, microseconds
  uint32_t echo_us = 0;       ///< `sent_us` of the newest packet received
  uint16_t payload_length = 0;
  uint16_t fragment = 0;  ///< fragment id, for traces
  uint32_t fragment_length = 0;
  uint32_t fragment_offset = 0;
  uint32_t immediate = 0;
  uint32_t key = 0;
  uint64_t address = 0;  ///< where the fragment's first byte belongs

  size_t frame_bytes() const {
    return header_bytes + payload_length + ((flags & flag_sealed) != 0 ? seal_bytes : 0);
  }
};

void encode(const FrameHeader& header, std::byte* out);

/// Checks everything that can be checked without a path's state: magic, type, flags, lengths.
/// nullopt when the bytes are no frame.  `available` may exceed the frame.
std::optional<FrameHeader> decode(std::span<const std::byte> available, size_t total_length);

/// Serial-number order of sequence numbers (RFC 1982): negative when a is before b.
constexpr int32_t sequence_distance(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b); }

/// What a path's peer needs to know; travels in the control stream.
struct WireAddress {
  SocketAddress command;
  SocketAddress data;
  uint32_t path = 0;
  Secret token;
  uint32_t mtu = 0;           ///< interface MTU, bytes of IP packet
  uint32_t socket_bytes = 0;  ///< receive buffer of the data socket
  uint32_t window = 0;        ///< segments
  uint32_t tiny_bytes = 0;
};
inline constexpr size_t wire_address_bytes = 72;
void encode(const WireAddress& address, std::span<std::byte, wire_address_bytes> out);
std::optional<WireAddress> decode_address(std::span<const std::byte> bytes);

}  // namespace nccl_ha::fabric
