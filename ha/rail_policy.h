// How much of a transfer goes over the rails besides the first.  Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "ha/rails.h"
#include "runtime/base/instant.h"

namespace nccl_ha::ha {

/// Shares are counted in parts of this.
inline constexpr uint32_t share_parts = 1024;

/// Where hints come from: an agent's table of a connection.  One thread.
class HintSource {
 public:
  virtual ~HintSource() = default;
  /// The share of SUP in parts per 1024; nothing: there is no hint, or it is out of date.  Asked
  /// for each chunk, so that it takes nanoseconds and never waits.
  virtual std::optional<uint32_t> parts(Instant now) = 0;
};

struct RailTransfer {
  uint64_t bytes = 0;
  RailMode mode = RailMode::single;
  PathClass path_class = PathClass::intra_island;
  uint64_t direct_bytes = 0;  ///< between islands messages up to this size take SOUT alone
  std::optional<uint32_t> hint;
};

/// The share of SUP in parts per 1024; nothing: measurements decide (ha/rail_scheduler.h).  This is
/// the only place where a transfer meets a policy (seeds/000, 2.2).
constexpr std::optional<uint32_t> supplementary_parts(const RailTransfer& transfer) {
  switch (transfer.mode) {
    case RailMode::single:
      return 0;
    case RailMode::isolated:
      return transfer.path_class == PathClass::intra_island ? share_parts : 0;
    case RailMode::hinted:
      if (transfer.path_class == PathClass::inter_island &&
          transfer.bytes <= transfer.direct_bytes) {
        return 0;
      }
      return transfer.hint ? std::optional(std::min(*transfer.hint, share_parts)) : std::nullopt;
    case RailMode::balanced:
      break;
  }
  return std::nullopt;
}

/// Turns shares into whole chunks or messages: what was rounded is owed to the next one, so that
/// both rails get their shares of bytes, interleaved and not in bursts.  One thread.
class ShareAccumulator {
 public:
  /// True: a piece of that size goes to SUP.
  bool next(uint32_t parts, uint32_t bytes) const {
    if (parts == 0 || parts >= share_parts) {
      return parts != 0;
    }
    return 2 * (owed_ + int64_t{parts} * bytes) >= whole(bytes);
  }
  /// It has gone where next() said.
  void take(uint32_t parts, uint32_t bytes) {
    const bool takes = next(parts, bytes);
    if (parts == 0 || parts >= share_parts) {
      owed_ = 0;  // all or nothing owes nothing: backpressure is heeded by the next piece
      return;
    }
    owed_ += int64_t{parts} * bytes - (takes ? whole(bytes) : 0);
  }

 private:
  static int64_t whole(uint32_t bytes) { return int64_t{share_parts} * bytes; }

  int64_t owed_ = 0;  ///< to SUP, in bytes times share_parts
};

}  // namespace nccl_ha::ha
