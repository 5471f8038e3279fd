// How the emulation waits for words in memory that other threads and processes write at any time.
// There is no event to wait for: a GPU looks again and again, and here a few processors serve all
// ranks, so that who looks in vain gives way.
#pragma once

#include <poll.h>
#include <sched.h>

#include <chrono>
#include <ctime>

namespace nccl_ha::emulated {

/// Gives the processor to others for about so long.
inline void give_way(std::chrono::nanoseconds duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  const timespec time{static_cast<time_t>(seconds.count()),
                      static_cast<long>((duration - seconds).count())};
  ppoll(nullptr, 0, &time, nullptr);
}

/// Called after each look in vain: at first it only yields, later it takes next to no processor
/// from those that it waits for.
class Patience {
 public:
  void look_in_vain() {
    if (++looks_ < 64) {
      sched_yield();
    } else {
      give_way(std::chrono::microseconds(looks_ < 128 ? 20 : 1000));
    }
  }
  unsigned looks() const { return looks_; }

 private:
  unsigned looks_ = 0;
};

}  // namespace nccl_ha::emulated
