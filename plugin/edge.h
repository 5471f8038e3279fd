// The boundary to NCCL: error codes, wrong pointers, exceptions.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "plugin/nccl_abi.h"
#include "runtime/base/log.h"
#include "runtime/base/process_life.h"
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

/// Logs the exception that is being handled.
void report_exception() noexcept;

/// process_life() of the process that the plugin's connections and descriptors belong to; 0: there
/// are none, and a fork is free to begin.
extern constinit std::atomic<uint64_t> state_owner;
inline void own_state() { state_owner.store(process_life(), std::memory_order_relaxed); }
inline void disown_state() { state_owner.store(0, std::memory_order_relaxed); }

/// This is a fork of the process that uses the plugin: connections, devices and threads are that
/// one's, and locks may be held by threads that are not here.  Any thread; takes no lock.
inline bool in_fork() {
  const uint64_t owner = state_owner.load(std::memory_order_relaxed);
  return owner != 0 && owner != process_life();
}

/// On stderr, once, as NCCL's logger may have been locked when the fork began.
[[gnu::cold]] void refuse_fork(const char* call) noexcept;

/// Whether `call`, of NCCL's, comes in such a fork, where nothing can be done but say so.
inline bool called_in_fork(const char* call) noexcept {
  if (!in_fork()) [[likely]] {
    return false;
  }
  refuse_fork(call);
  return true;
}

/// Runs `body`; no exception passes NCCL's C interface.  In a fork an error.
template <class Body>
abi::NcclResult guarded(const char* call, Body&& body) noexcept {
  if (called_in_fork(call)) [[unlikely]] {
    return abi::NcclResult::invalid_usage;
  }
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
