#include "runtime/telemetry/trace_signal.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "runtime/base/log.h"

namespace nccl_ha {
namespace {

constexpr int trace_signal = SIGUSR2;

/// What the handler may touch.
struct Listeners {
  static constexpr size_t most = 16;
  std::array<std::atomic<int>, most> fds{};  ///< the descriptor + 1; 0: free
  std::atomic<int> pid{0};                   ///< of the process whose descriptors they are
  std::atomic<unsigned> running{0};          ///< threads in the handler
};
Listeners listeners;
std::mutex signal_mutex;  ///< of who installs the handler
size_t signal_users = 0;  ///< under that

/// Async-signal-safe.  Of all that it does with `listeners` there is one order, in which either it
/// sees that a descriptor was taken out, or whoever took it out sees that it is running.
void on_trace_signal(int) {
  if (getpid() != listeners.pid.load()) {
    return;  // a fork shares the descriptors
  }
  const int saved = errno;
  listeners.running.fetch_add(1);
  for (const auto& place : listeners.fds) {
    const int fd = place.load() - 1;
    if (fd >= 0) {
      static_cast<void>(!::write(fd, &TraceSignal::tick, sizeof TraceSignal::tick));
    }
  }
  listeners.running.fetch_sub(1);
  errno = saved;
}

/// What a fork has of its parent's: its descriptors are not this process's to tick, and the threads
/// that were in the handler are not here.
void forget_parent() {
  if (listeners.pid.load() == getpid()) {
    return;
  }
  for (auto& place : listeners.fds) {
    place.store(0);
  }
  listeners.running.store(0);
  signal_users = 0;
  listeners.pid.store(getpid());
}

size_t take_place(int fd) {
  for (size_t i = 0; i < Listeners::most; ++i) {
    int nobody = 0;
    if (listeners.fds[i].compare_exchange_strong(nobody, fd + 1)) {
      return i;
    }
  }
  return SIZE_MAX;
}

}  // namespace

TraceSignal::TraceSignal(int fd) : owner_pid_(getpid()) {
  std::lock_guard lock(signal_mutex);
  struct sigaction now {};
  if (sigaction(trace_signal, nullptr, &now) != 0) {
    return;
  }
  const bool ours = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == on_trace_signal;
  const bool free = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL;
  if (!ours && !free) {
    NHA_LOG_INFO(
        "SIGUSR2 dumps no flight recorder, as this process has a handler of its own for it: "
        "`nccl-ha trace dump {}` does",
        getpid());
    return;
  }
  forget_parent();
  place_ = take_place(fd);
  if (place_ == SIZE_MAX) {
    return;
  }
  ++signal_users;
  if (free) {
    struct sigaction mine {};
    mine.sa_handler = on_trace_signal;
    mine.sa_flags = SA_RESTART;
    sigemptyset(&mine.sa_mask);
    sigaction(trace_signal, &mine, nullptr);
  }
}

TraceSignal::~TraceSignal() {
  if (place_ == SIZE_MAX) {
    return;
  }
  std::lock_guard lock(signal_mutex);
  if (listeners.pid.load() != owner_pid_) {
    return;  // in a fork, where it was forgotten
  }
  if (--signal_users == 0) {
    struct sigaction now {};
    if (sigaction(trace_signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
        now.sa_handler == on_trace_signal) {
      // What comes late must not end a process that did nothing wrong.
      struct sigaction nothing {};
      nothing.sa_handler = SIG_IGN;
      sigaction(trace_signal, &nothing, nullptr);
      nothing.sa_handler = SIG_DFL;
      sigaction(trace_signal, &nothing, nullptr);
    }
  }
  listeners.fds[place_].store(0);
  while (getpid() == owner_pid_ && listeners.running.load() != 0) {
    sched_yield();  // for some writes, which do not block
  }
}

}  // namespace nccl_ha
