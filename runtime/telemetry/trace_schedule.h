// When dumps are made of what somebody asked for.  Pure: one thread's, with times from outside.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/base/instant.h"

namespace nccl_ha {

/// Why a dump is made.
enum class TraceCause : uint8_t { failure, failover, signal };

/// Of a set of causes.
constexpr uint32_t bit_of(TraceCause cause) { return 1U << static_cast<unsigned>(cause); }

class TraceSchedule {
 public:
  struct Limits {
    Duration interval{};  ///< between two dumps after failovers, and between two after failures
    Duration settle{};    ///< after a failover: other connections and the other direction follow
  };
  explicit TraceSchedule(const Limits& limits) : limits_(limits) {}

  /// What comes too soon after the last dump of its kind waits; nothing is left out.
  void ask(uint32_t causes, Instant now) {
    for (size_t i = 0; i < kinds_.size(); ++i) {
      Kind& kind = kinds_[i];
      if ((causes >> i & 1U) == 0 || kind.due) {
        continue;
      }
      const bool settles = i == static_cast<size_t>(TraceCause::failover);
      kind.due = settles ? now + limits_.settle : now;
      if (kind.last) {
        kind.due = std::max(*kind.due, *kind.last + limits_.interval);
      }
    }
  }
  /// When the next dump is to be made; nothing: none is wanted.
  std::optional<Instant> due() const {
    std::optional<Instant> first;
    for (const Kind& kind : kinds_) {
      if (kind.due && (!first || *kind.due < *first)) {
        first = kind.due;
      }
    }
    return first;
  }
  /// A dump is made now: the causes that waited for one, all of them.
  uint32_t take(Instant now) {
    uint32_t causes = 0;
    for (size_t i = 0; i < kinds_.size(); ++i) {
      Kind& kind = kinds_[i];
      if (!kind.due) {
        continue;
      }
      causes |= 1U << i;
      kind.due.reset();
      if (i != static_cast<size_t>(TraceCause::signal)) {
        kind.last = now;  // who asks by a signal gets a dump each time
      }
    }
    return causes;
  }

 private:
  struct Kind {
    std::optional<Instant> due;   ///< somebody waits for a dump
    std::optional<Instant> last;  ///< the last one
  };

  Limits limits_;
  std::array<Kind, 3> kinds_{};  ///< by TraceCause
};

}  // namespace nccl_ha
