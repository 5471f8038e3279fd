// Whether this is still the process that made something, or a fork of it.
//
// A fork has a copy of the library's memory and owns nothing of what that describes: sockets,
// connections, files and threads are its parent's.
#pragma once

#include <atomic>
#include <cstdint>

namespace nccl_ha {

namespace detail {
/// 0 where this process has no number yet.  The kernel clears it in a fork, clone(2) included.
extern constinit std::atomic<std::atomic<uint64_t>*> life;
[[gnu::cold]] uint64_t begin_life() noexcept;
}  // namespace detail

/// The number of this process: no fork has its parent's.  Any thread; takes no lock.
inline uint64_t process_life() noexcept {
  const uint64_t known =
      detail::life.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
  return known != 0 ? known : detail::begin_life();
}

/// This process gets a new number.  For a fork where the kernel clears none; async-signal-safe.
void end_life() noexcept;

/// A member of what belongs to the process that made it.
class MadeHere {
 public:
  /// False in a fork.
  bool here() const noexcept { return life_ == process_life(); }

 private:
  uint64_t life_ = process_life();
};

}  // namespace nccl_ha
