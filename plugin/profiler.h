// Events of transfers, for the profiler plugin that a user may have given NCCL.
//
// An event starts in the isend() or irecv() that posted a request, and stops in the test() that
// reports it as done or failed: in whatever thread NCCL calls these, its proxy's progress thread,
// and never in one of ours.  NCCL's callback is quick where no profiler is loaded, and leaves the
// event's handle null where that one does not want events of networks; then nothing is kept.
//
// What the callback returns does not matter to a transfer.  A start that fails is no event; a stop
// is said once, whatever it answers.
//
// A connection that is closed stops nothing: by then the profiler may have let go of the
// communicator's state that its events belong to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/channel.h"
#include "plugin/nccl_abi.h"

namespace nccl_ha::plugin {

/// What init() was given; may be null.  The handles that come with buffers are of the same NCCL.
/// When two of them share this library neither has events, since nobody knows whose a handle is.
void use_profiler(abi::ProfilerCallback callback);
/// No more events begin: the last NCCL has finalized, or the library is unloaded.
void forget_profiler();

/// Caller: `request` was posted, and position `position` of it has NCCL's handle `phandle`.
void start_event(Channel& channel, const Request& request, size_t position, void* phandle,
                 uint64_t bytes, int tag) noexcept;

}  // namespace nccl_ha::plugin
