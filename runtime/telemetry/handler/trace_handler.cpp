// Compiled by itself and carried within the library (cmake/NhaTraceHandler.cmake).
#include "runtime/telemetry/handler/trace_handler.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>

extern "C" {

[[gnu::visibility("default")]] constinit nccl_ha::TraceListeners nha_trace_listeners{};

/// Async-signal-safe.  Of all that it does with the listeners there is one order, in which either
/// it sees that a descriptor was taken out, or whoever took it out sees that it is running.
[[gnu::visibility("default")]] void nha_on_trace_signal(int) {
  constexpr uint64_t tick = uint64_t{1} << 32;
  const int saved = errno;
  if (getpid() == nha_trace_listeners.pid.load()) {  // a fork shares the descriptors
    nha_trace_listeners.running.fetch_add(1);
    for (const auto& place : nha_trace_listeners.fds) {
      const int fd = place.load() - 1;
      if (fd >= 0) {
        static_cast<void>(!write(fd, &tick, sizeof tick));
      }
    }
    nha_trace_listeners.running.fetch_sub(1);
  }
  errno = saved;
}
}
