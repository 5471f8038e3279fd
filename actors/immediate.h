// The 32 bits that travel with a write: what arrived, without touching the payload.
//
//   31..30 kind   29..24 path epoch   23..11 group   10..8 position   7..4 last chunk   3..0 chunk
//
// A group is one posted receive of up to eight buffers, numbered per connection; position is the
// buffer in it.  A message is cut into 1 to 16 chunks; each names itself and the last one.  The
// epoch counts how often the path was replaced.
#pragma once

#include <cstdint>

namespace nccl_ha {

enum class ImmediateKind : uint8_t {
  control = 0,  ///< a control message, or nothing: see ControlMark
  data = 1,     ///< a chunk; its length is that of the write
  clear_to_send = 2,
  recorded = 3,  ///< a chunk written before; its length is in the size record written with this
};

struct Immediate {
  static constexpr uint32_t group_bits = 13;
  static constexpr uint32_t epoch_mask = 63;
  ImmediateKind kind = ImmediateKind::data;
  uint32_t group = 0;  ///< low bits of the group number
  uint32_t position = 0;
  uint32_t chunk = 0;
  uint32_t last_chunk = 0;
  uint32_t epoch = 0;  ///< low bits of the epoch of the path that it travels on

  constexpr uint32_t pack() const {
    return static_cast<uint32_t>(kind) << 30 | (group & ((1U << group_bits) - 1)) << 11 |
           (position & 7U) << 8 | (last_chunk & 15U) << 4 | (chunk & 15U) | epoch_part(epoch);
  }
  static constexpr Immediate unpack(uint32_t bits) {
    return {static_cast<ImmediateKind>(bits >> 30),
            (bits >> 11) & ((1U << group_bits) - 1),
            (bits >> 8) & 7U,
            bits & 15U,
            (bits >> 4) & 15U,
            (bits >> 24) & epoch_mask};
  }
  static constexpr uint32_t epoch_part(uint32_t epoch) { return (epoch & epoch_mask) << 24; }
  static constexpr bool same_epoch(uint32_t bits, uint32_t epoch) {
    return (bits & epoch_part(epoch_mask)) == epoch_part(epoch);
  }
  static constexpr uint64_t groups_told_apart = 1U << group_bits;
  /// By how much the group whose low bits came lies before `group_number`.
  static constexpr uint64_t group_distance(uint32_t low_bits, uint64_t group_number) {
    return (group_number - low_bits) & ((1U << group_bits) - 1);
  }
  /// By how much it lies behind it.
  static constexpr uint64_t group_distance_ahead(uint32_t low_bits, uint64_t group_number) {
    return (low_bits - group_number) & ((1U << group_bits) - 1);
  }
  static constexpr bool same_group(uint32_t low_bits, uint64_t group_number) {
    return low_bits == (group_number & ((1U << group_bits) - 1));
  }
};

/// The same bits of a clear-to-send: the first group that it announces, and where in the ring its
/// entries begin (10..0).
struct Announcement {
  uint32_t group = 0;  ///< low bits of the group number
  uint32_t first_entry = 0;
  uint32_t epoch = 0;  ///< as in Immediate

  constexpr uint32_t pack() const {
    return Immediate{ImmediateKind::clear_to_send, group}.pack() | (first_entry & 0x7FFU) |
           Immediate::epoch_part(epoch);
  }
  static constexpr Announcement unpack(uint32_t bits) {
    const Immediate same = Immediate::unpack(bits);
    return {same.group, bits & 0x7FFU, same.epoch};
  }
};

/// The same bits of a control write: the message's number (7..0) and what this side has taken of
/// the peer's (23..8).  Without bytes it is a heartbeat that carries a confirmation.
struct ControlMark {
  uint8_t number = 0;      ///< low bits
  uint16_t confirmed = 0;  ///< low bits
  uint32_t epoch = 0;

  constexpr uint32_t pack() const {
    return uint32_t{confirmed} << 8 | number | Immediate::epoch_part(epoch);
  }
  static constexpr ControlMark unpack(uint32_t bits) {
    return {static_cast<uint8_t>(bits), static_cast<uint16_t>(bits >> 8),
            (bits >> 24) & Immediate::epoch_mask};
  }
  static constexpr bool marks(uint32_t bits) {
    return bits >> 30 == static_cast<uint32_t>(ImmediateKind::control);
  }
};

static_assert(ControlMark::unpack(ControlMark{200, 40000, 3}.pack()).confirmed == 40000);
static_assert(ControlMark::marks(ControlMark{255, 65535, 63}.pack()));
static_assert(Immediate::unpack(Immediate{ImmediateKind::data, 5, 3, 2, 7}.pack()).group == 5);
static_assert(Immediate::unpack(Immediate{ImmediateKind::data, 5, 3, 2, 7}.pack()).last_chunk == 7);
static_assert(Announcement::unpack(Announcement{8191, 511}.pack()).first_entry == 511);

}  // namespace nccl_ha
