// How much of everything a connection may have under way.
#pragma once

#include <cstddef>

#include "ha/ledger.h"

namespace nccl_ha {

inline constexpr size_t group_max = 8;      ///< buffers of one grouped receive
inline constexpr size_t receives_max = 32;  ///< open receives of a connection
inline constexpr size_t sends_max = receives_max * group_max;
inline constexpr size_t flushes_max = receives_max;
inline constexpr size_t chunks_max = ha::ledger_chunks_max;  ///< of one message
inline constexpr size_t cts_slots = 64;  ///< more than open groups, so that a slot is never hot

}  // namespace nccl_ha
