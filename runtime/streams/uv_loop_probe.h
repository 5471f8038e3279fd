// Whether libuv can make a loop.
#pragma once

#include "runtime/base/result.h"

namespace nccl_ha {

/// Opens what uv_loop_init() opens, in the same numbers, and closes it again.  libuv ends the
/// process where the first loop finds no descriptor for its signal pipe, which no plugin may do to
/// its host. Another thread may still take the last descriptors in between.  Any thread.
Result<void> probe_uv_loop();

}  // namespace nccl_ha
