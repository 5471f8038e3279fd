#include "runtime/base/random.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

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

namespace {

/// Fills `out` by `take`, which gives as read(2) does; false: errno says why not.
template <class Take>
bool fill(void* out, size_t bytes, Take&& take) {
  auto* at = static_cast<unsigned char*>(out);
  while (bytes > 0) {
    const ssize_t got = take(at, bytes);
    if (got > 0) {
      at += got;
      bytes -= static_cast<size_t>(got);
    } else if (got == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

Result<void> os_random(void* out, size_t bytes) {
  if (fill(out, bytes, [](void* at, size_t wanted) { return getrandom(at, wanted, 0); })) {
    return {};
  }
  // A seccomp filter may refuse the call.
  const int refused = errno;
  const int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  const bool filled = file >= 0 && fill(out, bytes, [file](void* at, size_t wanted) {
                        return read(file, at, wanted);
                      });
  const int unread = errno;
  if (file >= 0) {
    close(file);
  }
  if (filled) {
    return {};
  }
  return fail(Errc::system,
              fmt::format("there are no random bytes here: getrandom(2) is refused ({}), and "
                          "/dev/urandom cannot be read ({}); allow one of them in this container",
                          std::strerror(refused), std::strerror(unread)));
}

}  // namespace nccl_ha
