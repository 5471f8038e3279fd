#include "runtime/telemetry/caller_recorders.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <new>
#include <string>

namespace nccl_ha {
namespace {

bool has_ended(int thread) {
  return syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH;
}

std::string label_of(int thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/comm", thread));
  std::string name;
  std::getline(file, name);
  return fmt::format("caller {} ({})", thread, name);
}

}  // namespace

constinit thread_local CallerRecorders::Latest CallerRecorders::latest;
std::atomic<uint64_t> CallerRecorders::last_number{0};

CallerRecorder* CallerRecorders::find() {
  const auto thread = static_cast<int>(syscall(SYS_gettid));
  std::lock_guard lock(mutex_);
  for (const auto& known : recorders_) {
    if (known->thread_ == thread) {
      return known.get();  // its own, or that of one which had its number
    }
  }
  try {
    return take(thread);
  } catch (const std::bad_alloc&) {
    return nullptr;  // who calls goes on without
  }
}

CallerRecorder* CallerRecorders::take(int thread) {
  for (const auto& known : recorders_) {
    if (has_ended(known->thread_)) {
      known->counters_.rename(place_.parent, label_of(thread));
      known->thread_ = thread;
      return known.get();
    }
  }
  recorders_.reserve(recorders_.size() + 1);
  CounterBlock<CallerCounters> counters(place_, label_of(thread));
  const CounterFile::RingPlace ring =
      counters.id() == 0 ? CounterFile::RingPlace{}
                         : place_.file->take_ring(counters.id(), CounterFile::RingKind::caller);
  if (ring.ring == nullptr) {
    return nullptr;
  }
  recorders_.push_back(std::make_unique<CallerRecorder>(std::move(counters), ring, place_.file));
  recorders_.back()->thread_ = thread;
  return recorders_.back().get();
}

}  // namespace nccl_ha
