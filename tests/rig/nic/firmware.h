// Commands of a device's firmware: what they cost, and what they answer when the device failed.
#pragma once

#include <cstdint>
#include <mutex>

#include "tests/rig/nic/control.h"
#include "tests/rig/nic/settings.h"

namespace nccl_ha::emulated {

/// What becomes of a verb.
struct Verdict {
  bool carried_out = true;
  int error = 0;  ///< what the caller is told, an errno
};

/// Those that end something are answered with success by the driver of a device with an internal
/// error, all others with EIO.
enum class Command : uint8_t { other, ends };

/// One per device.  Any thread, without the NIC's mutex: it takes time.
class Firmware {
 public:
  Firmware(const Settings& settings, DeviceState& state) : settings_(settings), state_(state) {}
  /// Waits as long as the command takes.  `generation`: of the device as the caller opened it.
  Verdict command(Command kind, Duration cost, uint32_t generation);

 private:
  void wait(Duration time, Mode while_in);
  Mode mode() const { return static_cast<Mode>(state_.mode.load()); }

  const Settings& settings_;
  DeviceState& state_;
  std::mutex one_at_a_time_;
  uint64_t drawn_ = 0;
};

/// A number that follows from seed and count; the same in every run.
uint64_t draw(uint64_t seed, uint64_t count);

}  // namespace nccl_ha::emulated
