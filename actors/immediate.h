// The 32 bits that travel with a write: what arrived, without touching the payload.
//
//   31..30 kind   29..24 path epoch   23..11 group   10..8 position   7..4 last chunk   3..0 chunk
//
// A group is one posted receive of up to eight buffers, numbered per connection; position is the
// buffer in it.  A message is cut into 1 to 16 chunks; each names itself and the last one.  Epoch
// is 0 as long as no path was replaced.
#pragma once

#include <cstdint>

namespace nccl_ha {

enum class ImmediateKind : uint8_t {
  data = 1,  ///< a chunk; its length is that of the write
  clear_to_send = 2,
  recorded = 3,  ///< a chunk written before; its length is in the size record written with this
};

struct Immediate {
  static constexpr uint32_t group_bits = 13;
  ImmediateKind kind = ImmediateKind::data;
  uint32_t group = 0;  ///< low bits of the group number
  uint32_t position = 0;
  uint32_t chunk = 0;
  uint32_t last_chunk = 0;

  constexpr uint32_t pack() const {
    return static_cast<uint32_t>(kind) << 30 | (group & ((1U << group_bits) - 1)) << 11 |
           (position & 7U) << 8 | (last_chunk & 15U) << 4 | (chunk & 15U);
  }
  static constexpr Immediate unpack(uint32_t bits) {
    return {static_cast<ImmediateKind>(bits >> 30), (bits >> 11) & ((1U << group_bits) - 1),
            (bits >> 8) & 7U, bits & 15U, (bits >> 4) & 15U};
  }
  /// The epoch must be zero.
  static constexpr bool plain(uint32_t bits) { return (bits & 0x3F000000U) == 0; }
  static constexpr bool same_group(uint32_t low_bits, uint64_t group_number) {
    return low_bits == (group_number & ((1U << group_bits) - 1));
  }
};

/// The same bits of a clear-to-send: the first group that it announces, and where in the ring its
/// entries begin (10..0).
struct Announcement {
  uint32_t group = 0;  ///< low bits of the group number
  uint32_t first_entry = 0;

  constexpr uint32_t pack() const {
    return Immediate{ImmediateKind::clear_to_send, group}.pack() | (first_entry & 0x7FFU);
  }
  static constexpr Announcement unpack(uint32_t bits) {
    return {Immediate::unpack(bits).group, bits & 0x7FFU};
  }
};

static_assert(Immediate::unpack(Immediate{ImmediateKind::data, 5, 3, 2, 7}.pack()).group == 5);
static_assert(Immediate::unpack(Immediate{ImmediateKind::data, 5, 3, 2, 7}.pack()).last_chunk == 7);
static_assert(Announcement::unpack(Announcement{8191, 511}.pack()).first_entry == 511);

}  // namespace nccl_ha
