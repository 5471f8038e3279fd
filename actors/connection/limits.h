// How far the two sides of a connection may be apart.
#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/connection/lane.h"
#include "actors/control.h"
#include "actors/cts_entry.h"
#include "actors/eager.h"

namespace nccl_ha {

/// Groups may end out of order, when they travel on several paths; but no further apart than this,
/// so that the entries of all that is open fit the ring and the report of a fence.
inline constexpr uint64_t groups_apart_max = 48;
inline constexpr uint32_t announced_together = 64;  ///< clear-to-send entries in one write, at most
static_assert(groups_apart_max >= receives_max && groups_apart_max <= report_groups_max);
// The sender may hear of so many more at once: eager messages complete them before.
static_assert(groups_apart_max + eager_slots < cts_slots);
static_assert(
    shadows_max <= cts_shadows && ha::device_rails_max <= cts_shadows,
    "a clear-to-send has a key for each shadow or other rail, of which there are no more");
static_assert(fabric::rails_per_device_max == ha::device_rails_max);
static_assert(ha::ledger_chunks_max >= lanes_max, "a message may have a chunk for each lane");
// Also with what was announced, found in memory and carried out, while nobody has looked at the
// completion that tells of it: it must not meet a newer entry.
static_assert((groups_apart_max + eager_slots + 1 + cts_found_ahead_max) * group_max + group_max <=
              cts_entries);
// A report travels in one piece over a path too; beside the groups it says 14 bytes.
static_assert(control_header_bytes + 14 + groups_apart_max * (2 + 2 * group_max) <=
              ControlBox::slot_bytes);

}  // namespace nccl_ha
