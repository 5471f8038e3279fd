// Sizes of chunks, written ahead of the immediates that cannot carry them.  Wire format.
#pragma once

#include <array>
#include <cstdint>

#include "actors/request_limits.h"

namespace nccl_ha {

/// Sizes of chunks whose immediate could not carry them (see ImmediateKind::recorded); written by
/// the sender into the receiver's memory, so the layout is wire format.
struct SizeRecords {
  std::array<std::array<std::array<uint32_t, chunks_max>, group_max>, cts_slots> bytes;
};
static_assert(sizeof(SizeRecords) == 32768);

}  // namespace nccl_ha
