// StreamFactory over libuv, one loop per worker.
//
// The only place that calls libuv.  Everything happens on the loop's thread; threads are never
// woken through libuv but through the worker's own waker.
#pragma once

#include <memory>

#include "runtime/streams/stream.h"

namespace nccl_ha {

/// The loop is created here and must be turned by one thread at a time.  A TCP connection whose
/// peer acknowledges nothing for `unanswered` ends with an error.
Result<std::unique_ptr<StreamFactory>> make_uv_streams(
    Duration unanswered = std::chrono::seconds(30));

}  // namespace nccl_ha
