#include "tests/rig/sim/rdma_memory.h"

#include <algorithm>
#include <cstring>

namespace nccl_ha::sim {
namespace {

constexpr uint64_t atom = 8;  ///< aligned bytes that a processor sees whole

}  // namespace

Instant RdmaMemory::write(const Write& write, const DeviceFaults& faults, Instant now) {
  dues_.clear();
  const bool late_gpu = write.gpu && faults.gpu_landing > Duration{};
  const bool in_pieces = faults.landing > Duration{} && random_.chance(faults.in_pieces);
  const bool behind = !write.relaxed && write.after > now && !write.gpu;
  if (!pieces_.empty()) {
    land_overlapping(write);
  }
  if (write.bytes.empty() || !(late_gpu || in_pieces || behind)) {
    if (!write.bytes.empty()) {
      std::memcpy(write.to, write.bytes.data(), write.bytes.size());
    }
    return std::max(now, write.after);
  }
  cuts_.clear();
  if (in_pieces) {
    cut(write);
  }
  cuts_.push_back(write.bytes.size());
  const Duration most = write.gpu ? std::max(faults.gpu_landing, faults.landing) : faults.landing;
  const auto bytes =
      std::make_shared<const std::vector<std::byte>>(write.bytes.begin(), write.bytes.end());
  Instant last = behind ? write.after : now;
  for (size_t i = 0, begin = 0; i < cuts_.size(); begin = cuts_[i++]) {
    Instant due = now + Duration(1 + random_.below(static_cast<uint64_t>(most.count())));
    if (!write.relaxed && !write.gpu) {
      due = std::max(due, last);  // the lower bytes first, and behind those before
    }
    last = std::max(last, due);
    dues_.push_back(due);
    pieces_.push_back({due, write.to, bytes, begin, cuts_[i], write.pair, write.region, write.gpu});
  }
  counts_.in_pieces += in_pieces ? 1 : 0;
  counts_.gpu_late += late_gpu ? 1 : 0;
  return write.gpu ? std::max(now, write.after) : std::max(last, write.after);
}

void RdmaMemory::keep(const Write& write, Instant due) {
  pieces_.push_back(
      {due, write.to,
       std::make_shared<const std::vector<std::byte>>(write.bytes.begin(), write.bytes.end()), 0,
       write.bytes.size(), write.pair, write.region, write.gpu});
}

/// Up to three cuts, where a processor may see one side and not the other.
void RdmaMemory::cut(const Write& write) {
  const auto base = reinterpret_cast<uint64_t>(write.to);
  const uint64_t first = atom - base % atom;  // offset of the first place that can be cut
  if (first >= write.bytes.size()) {
    return;
  }
  const uint64_t places = (write.bytes.size() - first + atom - 1) / atom;
  for (uint64_t left = 1 + random_.below(3); left != 0; --left) {
    cuts_.push_back(first + atom * random_.below(places));
  }
  std::sort(cuts_.begin(), cuts_.end());
  cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
}

template <typename Which>
size_t RdmaMemory::land_if(const Which& which) {
  size_t kept = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    Piece& piece = pieces_[i];
    if (which(piece)) {
      std::memcpy(piece.to + piece.begin, piece.bytes->data() + piece.begin,
                  piece.end - piece.begin);
      continue;
    }
    if (kept != i) {
      pieces_[kept] = std::move(piece);
    }
    ++kept;
  }
  const size_t landed = pieces_.size() - kept;
  pieces_.resize(kept);
  return landed;
}

/// A queue pair's later bytes never lose against its earlier ones.
void RdmaMemory::land_overlapping(const Write& write) {
  const std::byte* end = write.to + write.bytes.size();
  land_if([&](const Piece& piece) {
    return piece.pair == write.pair && piece.to + piece.begin < end &&
           write.to < piece.to + piece.end;
  });
}

void RdmaMemory::land(Instant now) {
  land_if([&](const Piece& piece) { return piece.due <= now; });
}

void RdmaMemory::land_pair(uint32_t pair) {
  land_if([&](const Piece& piece) { return piece.pair == pair; });
}

void RdmaMemory::land_region(uint32_t region) {
  land_if([&](const Piece& piece) { return piece.region == region; });
}

void RdmaMemory::lose_region(uint32_t region) {
  counts_.lost +=
      std::erase_if(pieces_, [&](const Piece& piece) { return piece.region == region; });
}

void RdmaMemory::flush_gpu() {
  counts_.gpu_flushed += land_if([](const Piece& piece) { return piece.gpu; });
}

void RdmaMemory::lose() {
  counts_.lost += pieces_.size();
  pieces_.clear();
}

}  // namespace nccl_ha::sim
