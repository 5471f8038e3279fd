// Eager messages: small ones that a sender copies, and gives away whether the receiver has said
// where they belong or not.  Wire format (docs/transfers.md).
//
// A message is written into one of a few slots that the receiver keeps for its connection, and is
// copied from there when the receive that it belongs to is there too.  Its immediate names its
// number among the connection's eager messages.  Its sender's caller has its memory back at once,
// so that nobody waits for an acknowledgement, nor for a clear-to-send.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "actors/immediate.h"
#include "actors/size_records.h"
#include "runtime/base/pages.h"
#include "runtime/fabric/path_traits.h"

namespace nccl_ha {

inline constexpr size_t eager_slots =
    4;  ///< eager messages under way, or waiting for their receive
inline constexpr uint32_t eager_bytes_max = 8192;  ///< of one message

/// What lies before a message's bytes.
struct EagerHead {
  static constexpr uint8_t unplaced = UINT8_MAX;

  uint64_t group = 0;  ///< that it is for; of an unplaced one: all below are full of others
  int32_t tag = 0;
  uint16_t bytes = 0;
  uint8_t position = unplaced;  ///< in that group; the receiver finds the place of an unplaced one
  uint8_t reserved = 0;

  bool is_placed() const { return position != unplaced; }
  /// The sender has heard of every group below.
  uint64_t known_groups() const { return is_placed() ? group + 1 : group; }
};
static_assert(sizeof(EagerHead) == 16 && eager_bytes_max <= UINT16_MAX);

/// Written by the sender into the receiver's memory, so the layout is wire format.
struct EagerSlot {
  EagerHead head;
  std::array<std::byte, eager_bytes_max> data;
};

/// The memory of a receiver that its sender writes beside the receives themselves; the sender has
/// the same, and writes from there.
struct alignas(page_bytes) DataTables {
  SizeRecords sizes;
  std::array<EagerSlot, eager_slots> eager;
};

/// Connections over such paths send eager messages: a copy by the processor is no more than what it
/// does anyway, and no memory is pinned for slots.
constexpr bool takes_eager(const fabric::PathTraits& traits) {
  return !traits.placed_by_nic && !traits.keys_per_device;
}
/// As much of DataTables as such a connection uses.
constexpr size_t data_table_bytes(const fabric::PathTraits& traits) {
  return takes_eager(traits) ? sizeof(DataTables) : sizeof(SizeRecords);
}

/// The 32 bits that travel with an eager message: those of a chunk that its message does not have.
struct EagerMark {
  uint32_t number = 0;  ///< low bits
  uint32_t epoch = 0;   ///< as in Immediate

  static constexpr uint32_t chunk = 1;  ///< of a message whose last one is 0

  constexpr uint32_t pack() const {
    return Immediate{ImmediateKind::data, number, 0, chunk, 0, epoch}.pack();
  }
  static constexpr bool marks(uint32_t bits) {
    constexpr uint32_t named = 3U << 30 | 7U << 8 | 15U << 4 | 15U;
    return (bits & named) == EagerMark{}.pack();
  }
};
static_assert(Immediate::groups_told_apart % eager_slots == 0,
              "low bits of a number name its slot");
static_assert(EagerMark::marks(EagerMark{8191, 63}.pack()));
static_assert(!EagerMark::marks(Immediate{ImmediateKind::data, 1, 0, 1, 1}.pack()));
static_assert(!EagerMark::marks(Immediate{ImmediateKind::data, 1, 0, 0, 0}.pack()));

}  // namespace nccl_ha
