// The signal handler for SIGUSR2, in a tiny shared object of its own that is never unloaded:
// whoever has chained or saved the handler may call it after the plugin is gone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

namespace nccl_ha {

/// What the handler may touch.  All copies of the plugin in a process share it: who changes it
/// changes the object's name (cmake/NhaTraceHandler.cmake).
struct TraceListeners {
  static constexpr size_t most = 16;
  std::array<std::atomic<int>, most> fds;  ///< the descriptor + 1; 0: free
  std::atomic<int> pid;                    ///< of the process whose descriptors they are
  std::atomic<unsigned> running;           ///< threads in the handler
};

}  // namespace nccl_ha
