#include "runtime/base/own_fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "runtime/base/process_life.h"

namespace nccl_ha {
namespace {

constexpr size_t word_bits = 64;
/// A process has no more descriptors unless fs.nr_open was raised; those beyond stay with a fork.
constexpr size_t fds_max = size_t{1} << 20;
constexpr long fork_patience_ns = 100'000'000;

// A fork may come out of a signal handler of a thread that holds it.  The second is for a clone:
// a tool that follows locks has the first one down as its parent's.
constinit std::array<pthread_mutex_t, 2> mutexes{
    {PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP, PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP}};
constinit std::atomic<pthread_mutex_t*> mutex{mutexes.data()};
// Under the mutex.
std::array<uint64_t, fds_max / word_bits> owned;
size_t words_used = 0;
unsigned fork_locks = 0;  ///< of `fork_holder`
// The thread whose fork has the mutex; forks of two threads overlap.
constinit std::atomic<pid_t> fork_holder{0};

/// Waits for so long only: a lock of the program's that its own handlers take may be held by
/// somebody who waits for this one.
void before_fork() {
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += fork_patience_ns;
  until.tv_sec += until.tv_nsec / 1'000'000'000;
  until.tv_nsec %= 1'000'000'000;
  if (pthread_mutex_timedlock(mutex, &until) == 0) {
    ++fork_locks;
    fork_holder.store(gettid(), std::memory_order_relaxed);
  }
}

void after_fork_in_parent() {
  if (fork_holder.load(std::memory_order_relaxed) == gettid()) {
    if (--fork_locks == 0) {
      fork_holder.store(0, std::memory_order_relaxed);
    }
    pthread_mutex_unlock(mutex);
  }
}

constinit std::atomic<uint64_t> list_life{0};  ///< of the process whose list it is; 0: nobody's yet

/// A clone(2) that is no fork(2) runs no handler, and a thread that is not here may have the mutex.
/// Nothing is closed, as such a clone may share the descriptors with its parent.
void see_clone() {
  const uint64_t here = process_life();
  const uint64_t before = list_life.exchange(here, std::memory_order_relaxed);
  if (before != here && before != 0) {
    pthread_mutex_t& other = mutexes[mutex == mutexes.data() ? 1 : 0];
    other = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    mutex = &other;
    fork_locks = 0;
    fork_holder.store(0, std::memory_order_relaxed);
    owned = {};
    words_used = 0;
  }
}

/// Async-signal-safe: other threads of the parent may have held any lock.
void after_fork_in_child() {
  // The C library refuses, as the thread has another number here; a tool that follows locks hears.
  for (; fork_locks != 0; --fork_locks) {
    pthread_mutex_unlock(mutex);
  }
  *mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
  fork_holder.store(0, std::memory_order_relaxed);
  end_life();
  list_life.store(process_life(), std::memory_order_relaxed);
  for (size_t i = 0; i < words_used; ++i) {
    for (uint64_t bits = owned[i]; bits != 0; bits &= bits - 1) {
      close(static_cast<int>(i * word_bits + static_cast<size_t>(std::countr_zero(bits))));
    }
    owned[i] = 0;
  }
  words_used = 0;
}

// Before any lock of it can be held.  The C library forgets it when this library is unloaded.
[[maybe_unused]] const bool forks_are_seen =
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;

}  // namespace

int above_standard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) {
    return fd;
  }
  const int other = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  close(fd);
  errno = error;
  return other;
}

OwnFds::OwnFds() {
  see_clone();
  pthread_mutex_lock(mutex);
}

OwnFds::~OwnFds() { pthread_mutex_unlock(mutex); }

int OwnFds::add(int fd) {
  if (fd < 0 || static_cast<size_t>(fd) >= fds_max) {
    return fd;
  }
  const size_t word = static_cast<size_t>(fd) / word_bits;
  words_used = std::max(words_used, word + 1);
  owned[word] |= uint64_t{1} << static_cast<size_t>(fd) % word_bits;
  return fd;
}

bool OwnFds::remove(int fd) {
  if (fd < 0) {
    return false;
  }
  if (static_cast<size_t>(fd) >= fds_max) {
    return true;
  }
  uint64_t& word = owned[static_cast<size_t>(fd) / word_bits];
  const uint64_t bit = uint64_t{1} << static_cast<size_t>(fd) % word_bits;
  const bool was = (word & bit) != 0;
  word &= ~bit;
  return was;
}

bool OwnFds::any() const {
  return std::any_of(owned.begin(), owned.begin() + static_cast<ptrdiff_t>(words_used),
                     [](uint64_t word) { return word != 0; });
}

void close_fd(int fd) {
  OwnFds own;
  if (own.remove(fd)) {
    close(fd);
  }
}

}  // namespace nccl_ha
