// Which path carries the next small message, in proportion to weights.  Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "ha/invariant.h"
#include "ha/serving_set.h"

namespace nccl_ha::ha {

/// Smooth weighted rotation: each turn every path gains its weight, the one with most carries the
/// message and pays the sum of all, so that turns are interleaved and not in bursts.  Equal weights
/// are a plain round.  One thread.
class Rotation {
 public:
  /// Begins anew with the first one.  At most ServingSet::lanes_max.
  void begin(std::span<const ServingSet::Share> shares) {
    invariants_.hold(shares.size() <= weights_.size(), "lanes are few");
    count_ = std::min(shares.size(), weights_.size());
    sum_ = 0;
    for (size_t i = 0; i < count_; ++i) {
      weights_[i] = shares[i].weight;
      gained_[i] = 0;
      sum_ += shares[i].weight;
    }
  }
  /// The index of the share whose turn it is.  There is one.
  size_t next() {
    invariants_.hold(count_ != 0, "a turn is somebody's");
    size_t most = 0;
    for (size_t i = 0; i < count_; ++i) {
      gained_[i] += weights_[i];
      most = gained_[i] > gained_[most] ? i : most;
    }
    gained_[most] -= sum_;
    invariants_.hold_deeply(
        [&] {
          const auto mine = std::span(gained_).first(count_);
          return std::accumulate(mine.begin(), mine.end(), int64_t{0}) == 0;
        },
        "what lanes gain in a turn is what its winner pays");
    return most;
  }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  size_t count_ = 0;
  int64_t sum_ = 0;
  std::array<int64_t, ServingSet::lanes_max> weights_{};
  std::array<int64_t, ServingSet::lanes_max> gained_{};
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
