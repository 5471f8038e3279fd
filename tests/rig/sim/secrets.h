// Secrets of a simulated process, which repeat from a seed: for tests only, as anybody can draw
// them too.
#pragma once

#include <cstring>

#include "runtime/base/random.h"
#include "runtime/base/secret.h"

namespace nccl_ha::sim {

class SimSecrets final : public SecretSource {
 public:
  explicit SimSecrets(uint64_t seed) : random_(seed) {}
  void fill(std::span<std::byte> out) override {
    while (!out.empty()) {
      const uint64_t some = random_.next();
      const size_t bytes = out.size() < sizeof some ? out.size() : sizeof some;
      std::memcpy(out.data(), &some, bytes);
      out = out.subspan(bytes);
    }
  }

 private:
  Random random_;
};

}  // namespace nccl_ha::sim
