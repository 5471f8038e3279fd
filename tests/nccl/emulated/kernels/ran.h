// What the kernels of this process were asked for: says it when the process ends.
#pragma once

#include "tests/nccl/emulated/kernels/function.h"

namespace nccl_ha::emulated {

/// One more piece of work of a channel.
void count_run(int collective, int algorithm, int protocol);

}  // namespace nccl_ha::emulated
