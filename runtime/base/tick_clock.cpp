#include "runtime/base/tick_clock.h"

#include <algorithm>
#include <cmath>

namespace nccl_ha {
namespace {

/// Two readings with ticks in between are of one moment when no more lies between them; else the
/// thread was interrupted.
constexpr Duration one_moment = std::chrono::microseconds(1);
/// A product of ticks and their rate has 64 bits.
constexpr uint64_t ticks_max = uint64_t{1} << 31;
/// There are no faster ones.
constexpr double max_ticks_per_ns = 10;

double ns(Duration duration) { return static_cast<double>(duration.count()); }

}  // namespace

void TickClock::start_at(uint64_t ticks, Instant time, double ns_per_tick) {
  base_ticks_ = ticks;
  base_ = time;
  begun_ = true;
  rate_ = ns_per_tick;
  scaled_rate_ = static_cast<uint64_t>(std::ldexp(ns_per_tick, scale_bits));
  good_for_ = scaled_rate_ == 0 ? 0
                                : static_cast<uint64_t>(std::min(static_cast<double>(ticks_max),
                                                                 ns(reading_interval) / rate_));
}

Instant TickClock::read() {
  const Instant before = exact_.now();
  const uint64_t now_ticks = ticks();
  const Instant now = exact_.now();
  const Duration took = now - base_;
  if (now - before > one_moment || (begun_ && took < reading_interval)) {
    return now;  // the next one tries again
  }
  const auto passed = static_cast<double>(now_ticks - base_ticks_);
  // Clocks are slewed by up to 500 ppm.
  const bool steady =
      rate_ == 0 || std::abs(passed * rate_ - ns(took)) < ns(error_max) / 2 + ns(took) / 2000;
  const bool known = begun_ && steady && passed >= 1 && passed < max_ticks_per_ns * ns(took);
  start_at(now_ticks, now, known ? ns(took) / passed : 0);
  return now;
}

}  // namespace nccl_ha
