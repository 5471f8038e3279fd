// SIGUSR2 of this process, which asks for a dump.
//
// The signal is the process's: a handler that it has stays, and so does one that it gets later,
// which may call ours whenever it likes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/process_life.h"

namespace nccl_ha {

/// As long as it lives the signal ticks an eventfd.  Any thread, on the control path: takes a lock.
class TraceSignal {
 public:
  /// What one signal adds to the eventfd.
  static constexpr uint64_t tick = uint64_t{1} << 32;

  /// `fd` is of eventfd(2) with EFD_NONBLOCK, and stays open longer than this.
  explicit TraceSignal(int fd);
  /// After it no thread is in the handler with `fd`.
  ~TraceSignal();
  TraceSignal(const TraceSignal&) = delete;
  TraceSignal& operator=(const TraceSignal&) = delete;

  /// False: the process has a handler of its own, too many listen, or the system loads no handler
  /// (trace_signal.cpp); nothing will tick.
  bool heard() const { return place_ != SIZE_MAX; }

 private:
  const MadeHere owner_;
  size_t place_ = SIZE_MAX;
};

}  // namespace nccl_ha
