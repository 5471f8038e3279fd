// How many simulated runs a test makes.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace nccl_ha::test {

/// Of each kind of run; the long suite wants more of them (NHA_SIM_SEEDS).
inline uint64_t sim_seeds() {
#if defined(__SANITIZE_THREAD__)
  constexpr uint64_t usual = 30;  // one thread: there is little that it could find
#elif defined(__SANITIZE_ADDRESS__)
  constexpr uint64_t usual = 40;
#else
  constexpr uint64_t usual = 400;
#endif
  const char* wanted = std::getenv("NHA_SIM_SEEDS");
  return wanted == nullptr ? usual : std::strtoull(wanted, nullptr, 10);
}

}  // namespace nccl_ha::test
