// How a message is cut into chunks, one for each path that carries a part of it.  Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "ha/invariant.h"
#include "ha/ledger.h"

namespace nccl_ha::ha {

class ChunkSplit {
 public:
  /// All chunks but the last are multiples of it: a whole number of NCCL's LL128 lines stays in one
  /// write.
  static constexpr uint32_t unit = 128;

  /// One chunk, whatever its size, also 0.
  void whole(uint32_t size) {
    count_ = 1;
    ends_[0] = size;
    paths_[0] = any;
  }
  /// A chunk for each weight, in their order, in proportion to them; what would be empty is left
  /// out, so that a message may have fewer chunks than there are weights.  The message is not
  /// empty, at least one weight is not 0, their sum is less than 2^32, and there are at most
  /// ledger_chunks_max of them.
  void by_weight(uint32_t size, std::span<const uint32_t> weights);
  /// Chunks of so many bytes each, or as many as there may be; whoever carries one is chosen later.
  void even(uint32_t size, uint32_t bytes);
  uint32_t count() const { return count_; }
  uint32_t begin(uint32_t chunk) const { return chunk == 0 ? 0 : ends_[chunk - 1]; }
  uint32_t bytes(uint32_t chunk) const { return ends_[chunk] - begin(chunk); }
  /// Which of the weights the chunk is for; `any`: it was not cut by weights.
  uint32_t path(uint32_t chunk) const { return paths_[chunk]; }
  static constexpr uint8_t any = UINT8_MAX;
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  uint32_t count_ = 0;
  std::array<uint32_t, ledger_chunks_max> ends_{};
  std::array<uint8_t, ledger_chunks_max> paths_{};
  Invariants invariants_;
};

inline void ChunkSplit::even(uint32_t size, uint32_t bytes) {
  const uint64_t least = (uint64_t{size} + ledger_chunks_max - 1) / ledger_chunks_max;
  const uint64_t piece = (std::max<uint64_t>({bytes, least, 1}) + unit - 1) / unit * unit;
  count_ = 0;
  uint64_t end = 0;
  do {
    end = std::min<uint64_t>(end + piece, size);
    paths_[count_] = any;
    ends_[count_++] = static_cast<uint32_t>(end);
  } while (end != size);
  invariants_.hold(count_ <= ledger_chunks_max, "a message has 1 to 16 chunks");
}

inline void ChunkSplit::by_weight(uint32_t size, std::span<const uint32_t> weights) {
  uint64_t total = 0;
  for (const uint32_t weight : weights) {
    total += weight;
  }
  if (!invariants_.hold(size != 0 && weights.size() <= ledger_chunks_max && total != 0,
                        "a message that is split has bytes, and lanes to carry them"))
      [[unlikely]] {
    whole(size);
    return;
  }
  count_ = 0;
  uint64_t before = 0;
  uint32_t last = 0;
  for (uint32_t path = 0; last != size && path < weights.size(); ++path) {
    before += weights[path];
    // To the nearest unit, so that errors do not add up; the last one has what is left.
    const uint64_t near = (size * before / total + unit / 2) / unit * unit;
    const auto end = before == total ? size : static_cast<uint32_t>(std::min<uint64_t>(near, size));
    if (end != last && weights[path] != 0) {
      last = end;
      paths_[count_] = static_cast<uint8_t>(path);
      ends_[count_++] = end;
    }
  }
  invariants_.hold(count_ != 0 && last == size, "the chunks of a message are all of it");
}

}  // namespace nccl_ha::ha
