// The 32 bits that travel with a write: what arrived, without touching the payload.
//
//   31..30 kind   29..24 path epoch   23..11 group   10..8 position   7..0 chunk
//
// A group is one posted receive of up to eight buffers, numbered per connection; position is the
// buffer in it.  Epoch and chunk are 0 as long as a connection has a single path.
#pragma once

#include <cstdint>

namespace nccl_ha {

enum class ImmediateKind : uint8_t { data = 1, clear_to_send = 2 };

struct Immediate {
  static constexpr uint32_t group_bits = 13;
  ImmediateKind kind = ImmediateKind::data;
  uint32_t group = 0;  ///< low bits of the group number
  uint32_t position = 0;

  constexpr uint32_t pack() const {
    return static_cast<uint32_t>(kind) << 30 | (group & ((1U << group_bits) - 1)) << 11 |
           (position & 7U) << 8;
  }
  static constexpr Immediate unpack(uint32_t bits) {
    return {static_cast<ImmediateKind>(bits >> 30), (bits >> 11) & ((1U << group_bits) - 1),
            (bits >> 8) & 7U};
  }
  /// Epoch and chunk must be zero: one path, one chunk.
  static constexpr bool plain(uint32_t bits) { return (bits & 0x3F0000FFU) == 0; }
  static constexpr bool same_group(uint32_t low_bits, uint64_t group_number) {
    return low_bits == (group_number & ((1U << group_bits) - 1));
  }
};
static_assert(Immediate::unpack(Immediate{ImmediateKind::data, 5, 3}.pack()).group == 5);

}  // namespace nccl_ha
