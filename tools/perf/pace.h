// How many iterations fit into a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nccl_ha::tools {

/// Iterations to run before the clock is looked at again, for a run of `seconds` of which
/// `elapsed_s` have passed with `done` iterations.  0: it is over.  At least one is run; each batch
/// is at most as large as all before it, so that a slow begin does not decide for the rest, and is
/// to take a hundredth of the time at most and half of what is left, though a four hundredth if
/// need be, so that a slow end does not make it much longer: others may want the processors then.
inline uint64_t next_batch(uint64_t done, double elapsed_s, double seconds) {
  if (done == 0) {
    return 1;
  }
  if (elapsed_s >= seconds) {
    return 0;
  }
  const double left = seconds - elapsed_s;
  const double time = std::min({left, std::max(left / 2, seconds / 400), seconds / 100});
  const double fit = elapsed_s > 0 ? static_cast<double>(done) * time / elapsed_s : 1e18;
  return static_cast<uint64_t>(std::clamp(fit, 1.0, static_cast<double>(done)));
}

}  // namespace nccl_ha::tools
