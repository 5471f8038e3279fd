// The kinds of work that NCCL's kernels are given.
#pragma once

#include <device.h>
#include <nccl.h>

#include <vector>

#include "tests/nccl/emulated/kernels/block.h"
#include "tests/nccl/emulated/kernels/function.h"

/// Several broadcasts as one kind of work: since 2.29.
#define NHA_BATCHED_BROADCASTS (NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0))

namespace nccl_ha::emulated {

void run_collective(const Block& block, const Function& function, ncclDevWorkColl& work);
void run_transfers(const Block& block, const std::vector<ncclDevWorkP2p>& works);
#if NHA_BATCHED_BROADCASTS
void run_broadcasts(const Block& block, const Function& function,
                    std::vector<ncclDevWorkBcast>& works);
#endif

}  // namespace nccl_ha::emulated
