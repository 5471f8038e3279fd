#include "runtime/base/secret.h"

#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "runtime/base/keyed_hash.h"
#include "runtime/base/random.h"

namespace nccl_ha {
namespace {

/// Other bytes with each call, in each process that forks off, and in each copy of this library.
Tag hash_of_exec() {
  static std::atomic<uint64_t> calls{0};
  HashKey key{};
  if (const auto* given = reinterpret_cast<const void*>(getauxval(AT_RANDOM)); given != nullptr) {
    std::memcpy(key.data(), given, 16);  // so many it has
  }
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::array<uint64_t, 5> once = {
      static_cast<uint64_t>(getpid()), reinterpret_cast<uint64_t>(&calls), calls.fetch_add(1),
      static_cast<uint64_t>(now.tv_sec), static_cast<uint64_t>(now.tv_nsec)};
  return make_tag(key, "secret", std::as_bytes(std::span(once)));
}

class KernelSecrets final : public SecretSource {
 public:
  void fill(std::span<std::byte> out) override {
    if (os_random(out.data(), out.size())) {
      return;
    }
    while (!out.empty()) {
      const Tag some = hash_of_exec();
      const size_t bytes = std::min(some.size(), out.size());
      std::memcpy(out.data(), some.data(), bytes);
      out = out.subspan(bytes);
    }
  }
};

}  // namespace

Secret SecretSource::draw() {
  uint64_t bits = 0;
  while (bits == 0) {
    fill(std::as_writable_bytes(std::span(&bits, 1)));
  }
  return Secret(bits);
}

uint32_t SecretSource::bits(unsigned count) {
  uint32_t drawn = 0;
  fill(std::as_writable_bytes(std::span(&drawn, 1)));
  return count >= 32 ? drawn : drawn & ((uint32_t{1} << count) - 1);
}

SecretSource& kernel_secrets() {
  static KernelSecrets source;
  return source;
}

}  // namespace nccl_ha
