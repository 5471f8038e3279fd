// Clear-to-send: what a receiver writes into a sender's memory.  Wire format (docs/transfers.md).
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "actors/request_limits.h"
#include "runtime/base/pages.h"

namespace nccl_ha {

/// Entries of the ring that clear-to-sends are written into: twice those of all open groups.
inline constexpr size_t cts_entries = 2 * receives_max * group_max;
inline constexpr size_t cts_shadows = 4;  ///< NICs besides the first one that an entry has keys for
/// Groups that may be found in memory before a completion tells of them.
inline constexpr uint64_t cts_found_ahead_max = 8;

/// One entry of a clear-to-send: "position i of group g may be written here".  Written by the
/// receiver's actor into the sender's memory, so the layout is wire format.
struct alignas(64) CtsEntry {
  uint64_t group;
  uint64_t address;
  uint32_t size;
  uint32_t key;
  int32_t tag;
  uint8_t count;  ///< positions of the group
  uint8_t position;
  uint8_t no_speculative_placement;  ///< the buffer is polled while it is written
  uint8_t reserved;
  /// Of the buffer on another device each: first those of the other rails, in their order, then
  /// those of the paths that stand by; 0: not told.
  std::array<uint32_t, cts_shadows> shadow_keys;
  std::array<uint16_t, cts_shadows> shadow_epochs;  ///< of paths that stand by, low bits
  uint64_t check;                                   ///< of the fields before: see seal()

  /// Receiver, when everything else is in place.
  void seal() { check = sum(); }
  /// Of a copy: it is no mixture of two entries.  A NIC may write one while it is looked at.
  bool is_whole() const { return check == sum(); }

 private:
  // Words, each times an odd number that has nothing to do with the others (the first 62 bits of
  // pi, e and the roots of 2, 3, 5, 7 and 11, made odd): a mixture of two entries has the sum of
  // neither, but for a chance of one in 2^64.
  uint64_t sum() const {
    const auto word = std::bit_cast<std::array<uint64_t, 8>>(*this);
    return 1 + word[0] * 0x3243F6A8885A308D + word[1] * 0x2B7E151628AED2A7 +
           word[2] * 0x16A09E667F3BCC91 + word[3] * 0x1BB67AE8584CAA73 +
           word[4] * 0x23C6EF372FE94F83 + word[5] * 0x2A54FF53A5F1D36F +
           word[6] * 0x3510E527FADE682D;
  }
};
static_assert(sizeof(CtsEntry) == 64 && offsetof(CtsEntry, shadow_keys) == 32 &&
              offsetof(CtsEntry, check) == 56);

/// What the peer's NIC may be writing right now; is_whole() judges the copy and nothing newer.
inline CtsEntry copy_of(const CtsEntry& live) {
  const CtsEntry copy = live;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return copy;
}

/// The entries of a group lie side by side, and so do the groups that are announced together.
struct alignas(page_bytes) CtsRing : std::array<CtsEntry, cts_entries> {};

}  // namespace nccl_ha
