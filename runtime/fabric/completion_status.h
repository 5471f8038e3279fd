// How work requests end: plain values, so that ha/ may know of them.
#pragma once

#include <cstdint>

namespace nccl_ha::fabric {

/// How a work request ended.  The first failure of a path moves it to PathState::error; everything
/// posted before or after it then ends with `flushed`.
enum class CompletionStatus : uint8_t {
  ok,                ///< done; for writes: acknowledged by the peer's provider
  flushed,           ///< the path was in error or closed before this one was done
  retry_exceeded,    ///< no acknowledgement within the retry budget: the path is dead
  local_protection,  ///< a local key did not cover the memory (deregistered meanwhile?)
  remote_access,     ///< the peer refused address or key of a write
  length_error,      ///< a message was longer than the device takes
  device_fault,      ///< the device or its driver failed, or a bug: not the network
};
const char* to_text(CompletionStatus status);

}  // namespace nccl_ha::fabric
