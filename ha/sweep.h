// How long an attempt over one of several ways may take, where they are tried one after the other.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "runtime/base/clock.h"

namespace nccl_ha::ha {

/// What works comes up within milliseconds, so that a first sweep gives each way a moment, and each
/// further one gives it more.
struct Sweep {
  /// Attempts of the first one share the first of these, within the other two.
  static constexpr Duration first = std::chrono::milliseconds(600);
  static constexpr Duration attempt_min = std::chrono::milliseconds(25);
  static constexpr Duration attempt_max = std::chrono::milliseconds(150);
  static constexpr int growth = 7;

  /// Over one of `ways`, at least one, after so many sweeps.
  static Duration limit(size_t ways, unsigned sweeps, Duration longest) {
    Duration limit = std::clamp(first / static_cast<int64_t>(ways), attempt_min, attempt_max);
    for (unsigned i = 0; i < sweeps && limit < longest; ++i) {
      limit *= growth;
    }
    return std::min(limit, longest);
  }
};

}  // namespace nccl_ha::ha
