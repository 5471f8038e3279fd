// How many simulated runs a test makes.
#pragma once

#include <cstdint>
#include <cstdlib>

// Each run takes ten times as long and goes through the same code.
#if defined(__SANITIZE_ADDRESS__) || defined(NHA_COVERAGE)
#define NHA_FEW_SIMULATED_RUNS
#endif

namespace nccl_ha::test {

/// Of each kind of run; the long suite wants more of them (NHA_SIM_SEEDS).
inline uint64_t sim_seeds() {
#if defined(NHA_FEW_SIMULATED_RUNS)
  constexpr uint64_t usual = 40;
#else
  constexpr uint64_t usual = 400;
#endif
  const char* wanted = std::getenv("NHA_SIM_SEEDS");
  return wanted == nullptr ? usual : std::strtoull(wanted, nullptr, 10);
}

/// How many of the `all` alike that a test goes through.
inline uint64_t sim_alike(uint64_t all) {
#if defined(NHA_FEW_SIMULATED_RUNS)
  return (all + 3) / 4;
#else
  return all;
#endif
}

}  // namespace nccl_ha::test
