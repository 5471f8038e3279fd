// How an RDMA device is.
#pragma once

#include <atomic>
#include <cstdint>

namespace nccl_ha::fabric::verbs {

/// It only ever gets worse.  Any thread.
class DeviceHealth {
 public:
  enum class Level : uint8_t {
    good,
    failed,  ///< it answers nothing, or lost a queue of datagrams; what it answers is true
    lost,    ///< DEVICE_FATAL: what its driver answers proves nothing any more
    gone,    ///< the kernel has taken it away from this process, with all that it had there
  };
  Level level() const { return level_.load(std::memory_order_acquire); }
  /// New paths can be made, and those that there are go on.
  bool usable() const { return level_.load(std::memory_order_relaxed) == Level::good; }
  /// False: it was as bad before.
  bool worsen(Level to) {
    Level now = level();
    while (now < to && !level_.compare_exchange_weak(now, to, std::memory_order_acq_rel)) {
    }
    return now < to;
  }

 private:
  std::atomic<Level> level_{Level::good};
};

}  // namespace nccl_ha::fabric::verbs
