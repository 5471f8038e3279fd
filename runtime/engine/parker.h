// Where a worker's thread sleeps: until a message, a packet, a stream or a deadline.
#pragma once

#include <optional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/engine/mailbox.h"

namespace nccl_ha {

/// wake() may be called by any thread, everything else by the thread that sleeps.
class Parker final : public Waker {
 public:
  static Result<std::unique_ptr<Parker>> make();
  ~Parker() override;
  Parker(const Parker&) = delete;
  Parker& operator=(const Parker&) = delete;

  void wake() override;
  /// Replaces the set of descriptors to sleep on.  None of `fds` may be closed meanwhile.  Where
  /// the kernel refuses one (fs.epoll.max_user_watches), sleeps are short.
  void watch(std::vector<int> fds);
  /// What is to be slept on is not known: so they are until watch() has been told.
  void lose_track() { whole_ = false; }
  /// All of them are watched.
  bool whole() const { return whole_; }
  /// Sleeps until woken, until a descriptor is readable, or until the deadline.
  void sleep(std::optional<Instant> deadline, Instant now);
  /// The same, whatever becomes of the descriptors: whoever is busy with them needs no help.
  void wait_until(Instant deadline, Instant now);

 private:
  Parker() = default;
  /// A set with nothing in it but what wake() needs; false: the old one stays.
  bool renew();
  void take_wakes();
  int epoll_ = -1;
  int event_ = -1;
  std::vector<int> fds_;
  bool whole_ = true;
};

}  // namespace nccl_ha
