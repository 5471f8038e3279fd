// What an error completion means for the connection.
#pragma once

#include <cerrno>

#include "runtime/base/result.h"
#include "runtime/fabric/completion_status.h"

namespace nccl_ha::ha {

enum class ErrorClass : uint8_t {
  path,     ///< this way to the peer is broken; another one, or the same one later, may do
  memory,   ///< not known where it was asked for: as program, or a device is being removed, which
            ///< loses memory first (refusal_excuse.h)
  program,  ///< lengths are wrong: it would be wrong on every path
};

/// Of what broke a path (fabric::Path::cause).  A device fault may be the device's or a bug; a bug
/// comes again at once, which HA_NCCL_MAX_RETRIES bounds.  A flush is the other side's doing, and
/// that side knows why.
constexpr ErrorClass classify(fabric::CompletionStatus cause) {
  switch (cause) {
    case fabric::CompletionStatus::local_protection:
    case fabric::CompletionStatus::remote_access:
      return ErrorClass::memory;
    case fabric::CompletionStatus::length_error:
      return ErrorClass::program;
    case fabric::CompletionStatus::ok:
    case fabric::CompletionStatus::flushed:
    case fabric::CompletionStatus::retry_exceeded:
    case fabric::CompletionStatus::device_fault:
      break;
  }
  return ErrorClass::path;
}

/// An errno value that says that this process or its host has used up what it may: somebody has to
/// raise a limit, for it seldom ends by itself.
constexpr bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM;
}

/// An errno value that says that a port, a device or an address is not there now: it may come back,
/// and another NIC may do meanwhile.
constexpr bool is_absence(int error) {
  return error == ENETDOWN || error == ENODEV || error == EADDRNOTAVAIL;
}

/// A device takes long with something and refuses nothing: its firmware may hang.
inline bool is_busy(const Error& error) {
  return error.code == Errc::timed_out && error.sys == EBUSY;
}

}  // namespace nccl_ha::ha
