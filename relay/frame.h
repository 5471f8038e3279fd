// What travels on the hops of a relayed path: a header, and a piece of a message behind it.
//
// Header, little-endian: magic u32, version u8, kind u8, length u16 (of the header), origin u64,
// destination u64, session u64, hop u16, hops u16, payload bytes u32, sequence u64, remote address
// u64, remote key u32, message bytes u32, offset u32, immediate u32, flags u32, 0 u32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "relay/node_id.h"

namespace nccl_ha::relay {

inline constexpr uint32_t frame_magic = 0x5248414E;  // "NAHR"
inline constexpr uint8_t frame_version = 1;
inline constexpr size_t frame_header_bytes = 80;

enum class FrameKind : uint8_t {
  write = 1,  ///< a piece for the receiver's memory; the last relay writes it there itself
  note = 2,   ///< the pieces of a write are all there
  // 3 was a piece of a two-sided message: it is not given out again.
  ack = 4,  ///< how many messages have come, and how many receives have been posted
};

inline constexpr uint32_t frame_last = 1;       ///< the end of its message
inline constexpr uint32_t frame_immediate = 2;  ///< of a write: there is one
inline constexpr uint32_t frame_exact = 4;      ///< WritePost::no_speculative_placement
inline constexpr uint32_t frame_flags = 7;

struct Frame {
  FrameKind kind = FrameKind::write;
  NodeId origin{};
  NodeId destination{};
  uint64_t session = 0;
  uint16_t hop = 0;   ///< how many hosts have passed it on
  uint16_t hops = 0;  ///< how many will have
  uint32_t payload_bytes = 0;
  uint64_t sequence = 0;        ///< of the message; ack: of the last one that has come
  uint64_t remote_address = 0;  ///< of this piece; ack: receives posted until now
  uint32_t remote_key = 0;
  uint32_t message_bytes = 0;
  uint32_t offset = 0;  ///< of this piece in its message
  uint32_t immediate = 0;
  uint32_t flags = 0;
  bool last() const { return (flags & frame_last) != 0; }
  bool has_immediate() const { return (flags & frame_immediate) != 0; }
};

/// `out` has frame_header_bytes.
void encode(const Frame& frame, std::byte* out);
/// `bytes` is the slot in which it lies; nullopt: it is no frame, or does not fit in there.
std::optional<Frame> decode_frame(std::span<const std::byte> bytes);

}  // namespace nccl_ha::relay
