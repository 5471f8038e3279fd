#include "tests/rig/nic/firmware.h"

#include <poll.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

namespace nccl_ha::emulated {

uint64_t draw(uint64_t seed, uint64_t count) {
  // splitmix64
  uint64_t z = seed * 0xD1342543DE82EF95U + (count + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

void Firmware::wait(Duration time, Mode while_in) {
  // After which it may have become another mode.  In a kernel the thread would not wake up at all,
  // and so wait for no processor meanwhile.
  constexpr uint64_t slice = 50'000'000;
  const uint64_t end = now_ns() + static_cast<uint64_t>(time.count());
  for (uint64_t now = now_ns(); now < end && mode() == while_in; now = now_ns()) {
    const timespec left{0, static_cast<long>(std::min(end - now, slice))};
    static_cast<void>(ppoll(nullptr, 0, &left, nullptr));
  }
}

Verdict Firmware::command(Command kind, Duration cost, uint32_t generation) {
  ++state_.counters.verbs;
  if (cost.count() != 0 && mode() == Mode::running) {
    const std::lock_guard lock(one_at_a_time_);
    if (settings_.jitter != 0) {
      const auto range = static_cast<int64_t>(std::min<uint64_t>(settings_.jitter, 100));
      const int64_t percent = 100 - range +
                              static_cast<int64_t>(draw(settings_.seed, ++drawn_) %
                                                   static_cast<uint64_t>(2 * range + 1));
      cost = cost * percent / 100;
    }
    wait(cost, Mode::running);
  }
  // Those that hang have a slot of their own each, and wait side by side.
  if (mode() == Mode::hung) {
    wait(settings_.hang_verb, Mode::hung);
    if (mode() == Mode::hung) {
      ++state_.counters.verbs_failed;
      const bool pretends = settings_.driver_answers && kind == Command::ends;
      return {false, pretends ? 0 : static_cast<int>(settings_.hang_answer)};
    }
  }
  if (mode() == Mode::reset || mode() == Mode::removing || state_.generation.load() != generation) {
    ++state_.counters.verbs_failed;
    return {false, EIO};
  }
  if (mode() == Mode::internal) {
    ++state_.counters.verbs_failed;
    return {false, kind == Command::ends ? 0 : EIO};
  }
  return {};
}

}  // namespace nccl_ha::emulated
