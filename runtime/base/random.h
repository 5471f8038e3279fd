// Pseudo-random numbers that repeat from a seed, for jitter and tests, and the kernel's bytes. What
// an unknown peer must not guess takes a SecretSource (secret.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/result.h"

namespace nccl_ha {

/// xoshiro256** (Blackman and Vigna, 2018), its state filled from the seed by splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed);
  uint64_t next();
  /// Uniform in [0, n); 0 for n == 0.
  uint64_t below(uint64_t n);
  /// Uniform in [0, 1).
  double unit();
  bool chance(double probability) { return probability > 0 && unit() < probability; }
  uint64_t seed() const { return seed_; }

 private:
  uint64_t seed_;
  uint64_t state_[4];
};

/// Unpredictable bytes from the kernel: getrandom(2), or /dev/urandom where that is refused.  An
/// error says that there are neither.
Result<void> os_random(void* out, size_t bytes);

}  // namespace nccl_ha
