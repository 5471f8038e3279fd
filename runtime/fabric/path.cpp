#include "runtime/fabric/path.h"

namespace nccl_ha::fabric {

const char* to_text(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::ok:
      return "ok";
    case CompletionStatus::flushed:
      return "flushed";
    case CompletionStatus::retry_exceeded:
      return "retry budget exceeded";
    case CompletionStatus::local_protection:
      return "local memory not registered";
    case CompletionStatus::remote_access:
      return "remote access refused";
    case CompletionStatus::length_error:
      return "message longer than the device takes";
    case CompletionStatus::device_fault:
      return "device fault";
  }
  return "unknown";
}

const char* to_text(PathState state) {
  switch (state) {
    case PathState::idle:
      return "idle";
    case PathState::connecting:
      return "connecting";
    case PathState::ready:
      return "ready";
    case PathState::error:
      return "error";
  }
  return "unknown";
}

}  // namespace nccl_ha::fabric
