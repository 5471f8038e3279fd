// What a transport agent says in simulated runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "ha/rail_policy.h"
#include "runtime/base/random.h"

namespace nccl_ha::rig {

/// An agent that changes its mind, and is silent now and then.
class RandomHints final : public ha::HintSource {
 public:
  explicit RandomHints(uint64_t seed) : random_(seed) {}
  std::optional<uint32_t> parts(Instant now) override {
    if (now >= next_) {
      next_ = now + std::chrono::microseconds(random_.below(5000));
      value_ = random_.chance(0.3)   ? std::nullopt
               : random_.chance(0.3) ? std::optional(random_.chance(0.5) ? 1024U : 0U)
                                     : std::optional(static_cast<uint32_t>(random_.below(1025)));
    }
    return value_;
  }

 private:
  Random random_;
  Instant next_{};
  std::optional<uint32_t> value_;
};

}  // namespace nccl_ha::rig
