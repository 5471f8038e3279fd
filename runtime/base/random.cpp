#include "runtime/base/random.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>

#include "runtime/base/check.h"

namespace nccl_ha {

Random::Random(uint64_t seed) : seed_(seed) {
  for (uint64_t& word : state_) {
    seed += 0x9E3779B97F4A7C15;
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    word = z ^ (z >> 31);
  }
}

uint64_t Random::next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

uint64_t Random::below(uint64_t n) {
  if (n == 0) {
    return 0;
  }
  // Values in the last, incomplete run of n would make small results likelier: drawn again.
  const uint64_t limit = UINT64_MAX - UINT64_MAX % n;
  uint64_t value = next();
  while (value >= limit) {
    value = next();
  }
  return value % n;
}

double Random::unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

Result<void> os_random(void* out, size_t bytes) {
  auto* at = static_cast<unsigned char*>(out);
  while (bytes > 0) {
    const ssize_t got = getrandom(at, bytes, 0);
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      return fail(Errc::system, "the kernel gives no random bytes", errno);
    }
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return {};
}

uint64_t os_random_u64() {
  uint64_t value = 0;
  NHA_ASSERT(os_random(&value, sizeof value), "getrandom failed");
  return value;
}

}  // namespace nccl_ha
