// Which rail carries the next chunk, by what each one delivers.  Pure.
//
// Each chunk goes where it arrives first: behind what is under way there, at the rate measured
// (ha/rail_estimate.h).  That is earliest completion first, as known from multipath TCP (Lim et
// al., "ECF: An MPTCP Path Scheduler to Manage Heterogeneous Paths", CoNEXT 2017): where the best
// rail has enough to do, a chunk waits for it, unless a slower one would have delivered it before
// all that waits could be delivered.  What waits was given to nobody, so that a rail that becomes
// slow holds little.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ha/invariant.h"
#include "ha/rail_estimate.h"
#include "ha/rails.h"

namespace nccl_ha::ha {

/// Takes the time from its caller.  One thread.
class RailScheduler {
 public:
  /// What its owner sees of a rail.
  struct Load {
    bool serves = false;
    uint64_t open = 0;  ///< bytes posted and not acknowledged
  };
  /// Work is under way for so long, and twice the delay, before a rail has enough.
  static constexpr Duration slack = std::chrono::milliseconds(2);
  /// The same for a rail that a hint has chosen: far less than heartbeats behind it may be late.
  static constexpr Duration hinted_slack = std::chrono::milliseconds(10);
  /// As much is under way on a rail before anything is known of it.
  static constexpr uint64_t first_bytes = 256 * 1024;
  /// Smaller chunks cost more than they gain.
  static constexpr uint32_t chunk_least = 32 * 1024;
  /// A chunk for so much time of all rails together is small enough.
  static constexpr Duration chunk_time = std::chrono::microseconds(50);

  /// By rail, in bytes per second; 0: not known.
  void begin(size_t rail, uint64_t expected_rate) {
    if (invariants_.hold(rail < estimates_.size(), "rails are few")) {
      estimates_[rail].begin(expected_rate);
    }
  }
  RailEstimate& estimate(size_t rail) { return estimates_[rail]; }
  const RailEstimate& estimate(size_t rail) const { return estimates_[rail]; }

  /// The rail for a chunk of that size; nothing: it waits, and some rail has work under way.
  /// `waiting`: bytes that are to be sent, the chunk's included.
  std::optional<size_t> pick(std::span<const Load> rails, uint32_t bytes, uint64_t waiting,
                             Instant now) const {
    constexpr double never = 1e300;
    double best = never;
    double best_free = never;
    std::optional<size_t> rail;
    for (size_t i = 0; i < rails.size() && i < estimates_.size(); ++i) {
      if (!rails[i].serves) {
        continue;
      }
      const RailEstimate& estimate = estimates_[i];
      const double cost = estimate.ns_per_byte(rails[i].open, now);
      const auto delay = static_cast<double>(estimate.delay().count());
      const double queue = static_cast<double>(rails[i].open) * cost;
      // The delay has the time of some bytes in it; of so few that this is no matter.
      const double finish = delay + queue + bytes * cost;
      best = std::min(best, finish);
      if (!full(i, rails[i].open, bytes, slack, now) && finish < best_free) {
        best_free = finish;
        rail = i;
      }
    }
    // Three fourths: so that what comes after it does not have to wait for it.
    if (rail && best_free > best && best_free > 0.75 * time_for_all(rails, waiting, now)) {
      return std::nullopt;
    }
    return rail;
  }

  /// Whether a chunk may go to the rail that a hint has chosen for it; false: it waits, and the
  /// rail has work under way.  A hint that gives a rail more than it carries costs time, not the
  /// rail.
  bool has_room(size_t rail, uint64_t open, uint32_t bytes, Instant now) const {
    return !full(rail, open, bytes, hinted_slack, now);
  }

  /// How large the chunks of a message should be.
  uint32_t chunk_bytes(std::span<const Load> rails, uint32_t message, Instant now) const {
    double rate = 0;
    uint32_t count = 0;
    for (size_t i = 0; i < rails.size() && i < estimates_.size(); ++i) {
      if (rails[i].serves) {
        rate += 1 / estimates_[i].ns_per_byte(rails[i].open, now);
        ++count;
      }
    }
    const uint32_t even = message / (2 * std::max(count, 1U));
    const auto fast = static_cast<uint32_t>(
        std::min(rate * static_cast<double>(chunk_time.count()), double{UINT32_MAX}));
    return std::max(chunk_least, std::min(even, fast));
  }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  bool full(size_t rail, uint64_t open, uint32_t bytes, Duration room, Instant now) const {
    if (open == 0) {
      return false;
    }
    const RailEstimate& estimate = estimates_[rail];
    if (!estimate.measured()) {
      return open + bytes > first_bytes;
    }
    const double work = static_cast<double>(open + bytes) * estimate.ns_per_byte(open, now);
    return work >
           2 * static_cast<double>(estimate.delay().count()) + static_cast<double>(room.count());
  }
  /// Until all that waits and is under way could be delivered, in nanoseconds.
  double time_for_all(std::span<const Load> rails, uint64_t waiting, Instant now) const {
    double rate = 0;
    auto bytes = static_cast<double>(waiting);
    for (size_t i = 0; i < rails.size() && i < estimates_.size(); ++i) {
      if (rails[i].serves) {
        rate += 1 / estimates_[i].ns_per_byte(rails[i].open, now);
        bytes += static_cast<double>(rails[i].open);
      }
    }
    return bytes / rate;
  }

  std::array<RailEstimate, device_rails_max> estimates_;
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
