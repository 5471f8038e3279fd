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

// Forks have it for themselves, all others share it.  The second is for a clone: a tool that
// follows locks has the first one down as its parent's.
constinit std::array<pthread_rwlock_t, 2> lock_and_spare{
    {PTHREAD_RWLOCK_INITIALIZER, PTHREAD_RWLOCK_INITIALIZER}};
constinit std::atomic<pthread_rwlock_t*> lists_lock{lock_and_spare.data()};
constinit std::array<std::atomic<uint64_t>, fds_max / word_bits> owned{};
constinit std::atomic<size_t> words_used{0};
unsigned fork_locks = 0;  ///< of `fork_holder`, which a signal handler may let fork once more
// The thread whose fork has the lock; forks of two threads overlap.
constinit std::atomic<pid_t> fork_holder{0};

/// Waits for so long only: a lock of the program's that its own handlers take may be held by
/// somebody who waits for this one.
void before_fork() {
  if (fork_holder.load(std::memory_order_relaxed) == gettid()) {
    ++fork_locks;
    return;
  }
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += fork_patience_ns;
  until.tv_sec += until.tv_nsec / 1'000'000'000;
  until.tv_nsec %= 1'000'000'000;
  if (pthread_rwlock_timedwrlock(lists_lock, &until) == 0) {
    fork_locks = 1;
    fork_holder.store(gettid(), std::memory_order_relaxed);
  }
}

void after_fork_in_parent() {
  if (fork_holder.load(std::memory_order_relaxed) == gettid()) {
    if (fork_locks > 1) {
      --fork_locks;
      return;
    }
    fork_holder.store(0, std::memory_order_relaxed);  // a handler's fork is refused the lock now
    fork_locks = 0;
    pthread_rwlock_unlock(lists_lock);
  }
}

constinit std::atomic<uint64_t> list_life{0};  ///< of the process whose list it is; 0: nobody's yet

void forget_all() {
  const size_t used = words_used.exchange(0, std::memory_order_relaxed);
  for (size_t i = 0; i < used; ++i) {
    owned[i].store(0, std::memory_order_relaxed);
  }
}

/// A clone(2) that is no fork(2) runs no handler, and a thread that is not here may have the lock.
/// Nothing is closed, as such a clone may share the descriptors with its parent.
uint64_t see_clone() {
  const uint64_t here = process_life();
  const uint64_t before = list_life.exchange(here, std::memory_order_relaxed);
  if (before != here && before != 0) {
    pthread_rwlock_t& other = lock_and_spare[lists_lock == lock_and_spare.data() ? 1 : 0];
    other = PTHREAD_RWLOCK_INITIALIZER;
    lists_lock = &other;
    fork_locks = 0;
    fork_holder.store(0, std::memory_order_relaxed);
    forget_all();
  }
  return here;
}

/// Async-signal-safe: other threads of the parent may have held any lock.
void after_fork_in_child() {
#ifdef __SANITIZE_THREAD__
  if (fork_locks != 0) {
    pthread_rwlock_unlock(lists_lock);  // for a tool that follows locks
  }
#endif
  fork_locks = 0;
  *lists_lock = PTHREAD_RWLOCK_INITIALIZER;
  fork_holder.store(0, std::memory_order_relaxed);
  end_life();
  list_life.store(process_life(), std::memory_order_relaxed);
  const size_t used = words_used.load(std::memory_order_relaxed);
  for (size_t i = 0; i < used; ++i) {
    for (uint64_t bits = owned[i].load(std::memory_order_relaxed); bits != 0; bits &= bits - 1) {
      close(static_cast<int>(i * word_bits + static_cast<size_t>(std::countr_zero(bits))));
    }
  }
  forget_all();
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

/// Refused to a thread whose own fork is under way: out of a signal handler.
OwnFds::OwnFds() : life_(see_clone()), held_(pthread_rwlock_rdlock(lists_lock) == 0) {}

/// A child that a signal handler has made has another lock.
OwnFds::~OwnFds() {
  if (held_ && life_ == process_life()) {
    pthread_rwlock_unlock(lists_lock);
  }
}

int OwnFds::add(int fd) {
  if (fd < 0 || static_cast<size_t>(fd) >= fds_max) {
    return fd;
  }
  const size_t word = static_cast<size_t>(fd) / word_bits;
  size_t used = words_used.load(std::memory_order_relaxed);
  while (used <= word &&
         !words_used.compare_exchange_weak(used, word + 1, std::memory_order_relaxed)) {
  }
  owned[word].fetch_or(uint64_t{1} << static_cast<size_t>(fd) % word_bits,
                       std::memory_order_relaxed);
  return fd;
}

bool OwnFds::remove(int fd) {
  if (fd < 0) {
    return false;
  }
  if (static_cast<size_t>(fd) >= fds_max) {
    return true;
  }
  const uint64_t bit = uint64_t{1} << static_cast<size_t>(fd) % word_bits;
  return (owned[static_cast<size_t>(fd) / word_bits].fetch_and(~bit, std::memory_order_relaxed) &
          bit) != 0;
}

bool OwnFds::any() const {
  const auto used = static_cast<ptrdiff_t>(words_used.load(std::memory_order_relaxed));
  return std::any_of(owned.begin(), owned.begin() + used, [](const std::atomic<uint64_t>& word) {
    return word.load(std::memory_order_relaxed) != 0;
  });
}

void close_fd(int fd) {
  OwnFds own;
  if (own.remove(fd)) {
    close(fd);
  }
}

}  // namespace nccl_ha
