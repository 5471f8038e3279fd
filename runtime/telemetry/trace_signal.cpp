#include "runtime/telemetry/trace_signal.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <trace_handler_bytes.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/telemetry/handler/trace_handler.h"

namespace nccl_ha {
namespace {

constexpr int trace_signal = SIGUSR2;
std::mutex signal_mutex;  ///< of who installs the handler

struct Handler {
  void (*call)(int) = nullptr;
  TraceListeners* listeners = nullptr;
};

/// Loads the shared object with the handler for good, but once in a process: a copy of this library
/// that comes after this one finds it by its name.
void* load_handler() {
  constexpr int mode = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  if (void* known = dlopen(trace_handler_name, mode | RTLD_NOLOAD); known != nullptr) {
    return known;
  }
  const int fd = make_fd([] { return memfd_create(trace_handler_name, MFD_CLOEXEC); });
  constexpr auto bytes = static_cast<ssize_t>(sizeof trace_handler_bytes);
  void* loaded = nullptr;
  if (fd >= 0 && write(fd, trace_handler_bytes, sizeof trace_handler_bytes) == bytes) {
    // The loader compares paths as they are written: nobody else writes this one.
    loaded = dlopen(fmt::format("/proc/self/./fd/./{}", fd).c_str(), mode);
  }
  close_fd(fd);
  return loaded;
}

/// Under signal_mutex.  Empty where the system loads no program out of memory.
const Handler& find_handler() {
  static constinit Handler found;
  void* object = found.call == nullptr ? load_handler() : nullptr;
  if (object != nullptr) {
    found = {reinterpret_cast<void (*)(int)>(dlsym(object, "nha_on_trace_signal")),
             static_cast<TraceListeners*>(dlsym(object, "nha_trace_listeners"))};
  }
  return found;
}

bool installed(const struct sigaction& action, void (*call)(int)) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == call;
}

/// A fork has its parent's descriptors there, which are not its own to tick, and the threads that
/// were in the handler are not here.
void forget_parent(TraceListeners& listeners) {
  if (listeners.pid.load() == getpid()) {
    return;
  }
  for (auto& place : listeners.fds) {
    place.store(0);
  }
  listeners.running.store(0);
  listeners.pid.store(getpid());
}

size_t take_place(TraceListeners& listeners, int fd) {
  for (size_t i = 0; i < TraceListeners::most; ++i) {
    int nobody = 0;
    if (listeners.fds[i].compare_exchange_strong(nobody, fd + 1)) {
      return i;
    }
  }
  return SIZE_MAX;
}

}  // namespace

TraceSignal::TraceSignal(int fd) {
  std::lock_guard lock(signal_mutex);
  struct sigaction now {};
  if (sigaction(trace_signal, nullptr, &now) != 0) {
    return;
  }
  const Handler& handler = find_handler();
  const bool free = installed(now, SIG_DFL);
  if (handler.call == nullptr || (!free && !installed(now, handler.call))) {
    NHA_LOG_INFO("SIGUSR2 dumps no flight recorder, as {}: `nccl-ha trace dump {}` does",
                 handler.call == nullptr ? "the system loads no handler for it"
                                         : "this process has a handler of its own for it",
                 getpid());
    return;
  }
  forget_parent(*handler.listeners);
  place_ = take_place(*handler.listeners, fd);
  if (free && place_ != SIZE_MAX) {
    struct sigaction mine {};
    mine.sa_handler = handler.call;
    mine.sa_flags = SA_RESTART;
    sigemptyset(&mine.sa_mask);
    sigaction(trace_signal, &mine, nullptr);
  }
}

TraceSignal::~TraceSignal() {
  if (place_ == SIZE_MAX || !owner_.here()) {
    return;  // in a fork it was forgotten
  }
  std::lock_guard lock(signal_mutex);
  const Handler& handler = find_handler();
  TraceListeners& listeners = *handler.listeners;
  listeners.fds[place_].store(0);
  const bool last =
      std::ranges::all_of(listeners.fds, [](const auto& place) { return place.load() == 0; });
  struct sigaction now {};
  if (last && sigaction(trace_signal, nullptr, &now) == 0 && installed(now, handler.call)) {
    // What comes late must not end a process that did nothing wrong.
    struct sigaction nothing {};
    nothing.sa_handler = SIG_IGN;
    sigaction(trace_signal, &nothing, nullptr);
    nothing.sa_handler = SIG_DFL;
    sigaction(trace_signal, &nothing, nullptr);
  }
  while (listeners.running.load() != 0) {
    sched_yield();  // for some writes, which do not block
  }
}

}  // namespace nccl_ha
