#include "runtime/engine/turn_pacer.h"

namespace nccl_ha {

void TurnPacer::on_clock(Instant now, uint64_t ticks, bool relaxed) {
  until_clock_ = relaxed ? relaxed_clock_period : clock_period;
  look_early_below_ = relaxed ? relaxed_clock_period - relaxed_turns_before_early_look : 0;
  if (!counts_ticks_) {
    return;
  }
  measure_ticks(now, ticks);
  looked_ticks_ = ticks;
  if (ticks_per_ns_ <= 0) {
    look_ticks_ = UINT64_MAX;  // turns are counted until it is known
    return;
  }
  const Duration period = relaxed ? relaxed_timer_period : timer_period;
  look_ticks_ = static_cast<uint64_t>(ticks_per_ns_ * static_cast<double>(period.count())) + 1;
  until_clock_ = ticking_clock_period;
  look_early_below_ = 0;
}

void TurnPacer::measure_ticks(Instant now, uint64_t ticks) {
  if (now - measured_ < measure_period) {
    return;
  }
  const double rate =
      static_cast<double>(ticks - measured_ticks_) / static_cast<double>((now - measured_).count());
  const bool begins = measured_ == Instant{};
  ticks_per_ns_ = begins || rate > fastest ? 0 : rate;
  measured_ = now;
  measured_ticks_ = ticks;
}

}  // namespace nccl_ha
