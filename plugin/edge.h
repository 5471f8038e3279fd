// The boundary to NCCL: error codes, wrong pointers, exceptions.
#pragma once

#include <string>

#include "plugin/nccl_abi.h"
#include "runtime/base/log.h"
#include "runtime/base/result.h"

namespace nccl_ha::plugin {

/// Errc -> ncclResult_t; the one table.
abi::NcclResult to_nccl(Errc code);

/// Logs an error where it is first decided and translates it.
abi::NcclResult report(const Error& error);

/// A copy of `text` that lives as long as the library.  Any thread.
const char* intern(const std::string& text);

/// Frees what intern() kept; its pointers die.  At unload only.
void forget_interned();

/// Logs the exception that is being handled, also where there is no memory left for a log line.
void report_exception() noexcept;

/// Runs `body`; no exception passes NCCL's C interface.
template <class Body>
abi::NcclResult guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    report_exception();
  }
  return abi::NcclResult::internal_error;
}

/// The comm behind NCCL's pointer, or null (logged) when it is none or of another kind.
template <class T, class Kind>
T* as(void* comm, Kind kind, const char* call) {
  if (comm == nullptr || *static_cast<const Kind*>(comm) != kind) {
    NHA_LOG_ERROR("{}: called with {}", call,
                  comm == nullptr ? "a null communicator"
                                  : "a communicator of another kind, or one already closed");
    return nullptr;
  }
  return static_cast<T*>(comm);
}

}  // namespace nccl_ha::plugin
