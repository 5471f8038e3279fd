// How many simulated runs a test makes.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace nccl_ha::test {

/// Of each kind of run; the long suite wants more of them (NHA_SIM_SEEDS).
inline uint64_t sim_seeds() {
#if defined(__SANITIZE_ADDRESS__)
  constexpr uint64_t usual = 40;
#else
  constexpr uint64_t usual = 400;
#endif
  const char* wanted = std::getenv("NHA_SIM_SEEDS");
  return wanted == nullptr ? usual : std::strtoull(wanted, nullptr, 10);
}

/// How many of the `all` alike that a test goes through: a few where a sanitizer looks on, which
/// takes ten times as long and looks at the same code each time.
inline uint64_t sim_alike(uint64_t all) {
#if defined(__SANITIZE_ADDRESS__)
  return (all + 3) / 4;
#else
  return all;
#endif
}

}  // namespace nccl_ha::test
