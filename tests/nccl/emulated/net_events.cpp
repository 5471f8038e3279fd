// A profiler plugin for NCCL (NCCL_PROFILER_PLUGIN) that counts what the network plugin tells of
// transfers.  Says what it counted when a communicator ends; cases.py judges.
//
// NCCL's header needs others before it.
// clang-format off
#include <sys/types.h>
#include <nccl.h>
#include <nccl_common.h>
#include <nccl_profiler.h>
// clang-format on

#include <cstdio>
#include <deque>
#include <mutex>

#include "plugin/profiler_event.h"

namespace {

namespace abi = nccl_ha::abi;

struct Context;

struct Event {
  Context* context = nullptr;
  abi::TransferV1 started{};
  abi::TransferV1 ended{};
  int updates = 0;
  int stops = 0;
};

/// A communicator.  Kept until the library goes, so that what comes too late is seen and no crash.
struct Context {
  int rank = 0;
  bool finalized = false;
  int strange = 0;  ///< events of another plugin, or after the end
  std::deque<Event> events;
};

std::mutex mutex;
std::deque<Context> contexts;

bool is_wrong(const Event& event) {
  const abi::TransferV1& from = event.started;
  const abi::TransferV1& to = event.ended;
  const bool sizes =
      from.kind == abi::TransferKind::send ? to.bytes == from.bytes : to.bytes <= from.bytes;
  return event.stops > 1 || event.updates != event.stops ||
         (event.stops == 1 &&
          (!sizes || from.state != abi::TransferState::posted ||
           to.state != abi::TransferState::done || to.connection != from.connection));
}

ncclResult_t init(void** context, uint64_t, int* mask, const char*, int, int, int rank,
                  ncclDebugLogger_t) {
  const std::lock_guard lock(mutex);
  Context& made = contexts.emplace_back();
  made.rank = rank;
  *context = &made;
  *mask = ncclProfileNetPlugin;
  return ncclSuccess;
}

ncclResult_t start_event(void* context, void** handle, ncclProfilerEventDescr_v5_t* what) {
  *handle = nullptr;
  if (what->type != ncclProfileNetPlugin) {
    return ncclSuccess;
  }
  auto* comm = static_cast<Context*>(context);
  const std::lock_guard lock(mutex);
  if (what->netPlugin.id != abi::profiler_id || comm->finalized) {
    ++comm->strange;
    return ncclSuccess;
  }
  Event& event = comm->events.emplace_back();
  event.context = comm;
  event.started = *static_cast<const abi::TransferV1*>(what->netPlugin.data);
  *handle = &event;
  return ncclSuccess;
}

ncclResult_t record(void* handle, ncclProfilerEventState_v5_t state,
                    ncclProfilerEventStateArgs_v5_t* arguments) {
  if (handle != nullptr && state == ncclProfilerNetPluginUpdate) {
    auto* event = static_cast<Event*>(handle);
    const std::lock_guard lock(mutex);
    event->ended = *static_cast<const abi::TransferV1*>(arguments->netPlugin.data);
    ++event->updates;
  }
  return ncclSuccess;
}

ncclResult_t stop_event(void* handle) {
  if (handle != nullptr) {
    auto* event = static_cast<Event*>(handle);
    const std::lock_guard lock(mutex);
    ++event->stops;
    event->context->strange += event->context->finalized ? 1 : 0;
  }
  return ncclSuccess;
}

struct Sum {
  size_t count = 0;
  size_t bytes = 0;
};

ncclResult_t finalize(void* context) {
  auto* comm = static_cast<Context*>(context);
  const std::lock_guard lock(mutex);
  comm->finalized = true;
  Sum sends;
  Sum receives;
  size_t open = 0;
  size_t wrong = static_cast<size_t>(comm->strange);
  for (const Event& event : comm->events) {
    Sum& sum = event.started.kind == abi::TransferKind::send ? sends : receives;
    ++sum.count;
    sum.bytes += event.ended.bytes;
    open += event.stops == 0 ? 1 : 0;
    wrong += is_wrong(event) ? 1 : 0;
  }
  std::fprintf(stderr,
               "net events of rank %d: %zu sends of %zu bytes, %zu receives of %zu bytes, %zu open,"
               " %zu wrong\n",
               comm->rank, sends.count, sends.bytes, receives.count, receives.bytes, open, wrong);
  return ncclSuccess;
}

}  // namespace

extern "C" {
extern __attribute__((visibility("default"))) ncclProfiler_v5_t ncclProfiler_v5;
ncclProfiler_v5_t ncclProfiler_v5 = {"net events", init, start_event, stop_event, record, finalize};
}
