// A clock for those who cannot afford to read one each time: the processor's ticks between two
// readings of the exact one.
#pragma once

#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/base/cpu.h"

namespace nccl_ha {

/// Follows another clock to less than `error_max` for as long as ticks are steady, and reads it
/// each time while they are not, or where there are none.  Owner thread only.
class TickClock {
 public:
  /// The other clock is read once in so long.
  static constexpr Duration reading_interval = std::chrono::milliseconds(10);
  static constexpr Duration error_max = std::chrono::microseconds(10);

  using TickSource = uint64_t (*)();  ///< null: cpu_ticks()
  explicit TickClock(Clock& exact, TickSource source = nullptr) : exact_(exact), source_(source) {}

  Instant now() {
    const uint64_t passed = ticks() - base_ticks_;
    if (passed >= good_for_) [[unlikely]] {
      return read();
    }
    return base_ + Duration(static_cast<int64_t>(passed * scaled_rate_ >> scale_bits));
  }

 private:
  static constexpr int scale_bits = 32;

  uint64_t ticks() const {
    if (source_ != nullptr) [[unlikely]] {
      return source_();
    }
    return cpu_ticks();
  }
  [[gnu::noinline]] Instant read();
  void start_at(uint64_t ticks, Instant time, double ns_per_tick);

  Clock& exact_;
  const TickSource source_;
  uint64_t base_ticks_ = 0;  ///< the ticks at base_
  uint64_t good_for_ = 0;    ///< ticks; then the exact clock is read
  uint64_t scaled_rate_ = 0;
  Instant base_{};
  double rate_ = 0;  ///< ns for each tick; 0: not known
  bool begun_ = false;
};

}  // namespace nccl_ha
