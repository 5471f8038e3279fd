// Pseudo-random numbers that repeat from a seed, and true ones for nonces and tokens.
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
/// For names, numbers and seeds, which have to differ: there is always one, also where the kernel
/// gives no bytes.  What nobody may guess takes os_random().
uint64_t os_random_u64();

}  // namespace nccl_ha
