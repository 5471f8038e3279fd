// When what a simulated RDMA device writes is seen in memory: at once, piece by piece, or, in GPU
// memory, no sooner than at a flush.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "tests/rig/sim/rdma_faults.h"

namespace nccl_ha::sim {

class RdmaMemory {
 public:
  explicit RdmaMemory(uint64_t seed) : random_(seed) {}

  struct Write {
    std::byte* to = nullptr;
    std::span<const std::byte> bytes;
    uint32_t pair = 0;    ///< queue pair that takes it
    uint32_t region = 0;  ///< local key of the memory
    bool gpu = false;
    bool relaxed = false;  ///< its parts may pass each other, and those before
    Instant after{};       ///< when what the queue pair wrote before will be there
  };
  struct Counts {
    uint64_t in_pieces = 0;    ///< writes
    uint64_t gpu_late = 0;     ///< writes into GPU memory that were not there at once
    uint64_t gpu_flushed = 0;  ///< pieces of these that a flush brought
    uint64_t lost = 0;         ///< pieces that a failing device never wrote
  };

  /// Takes it; when a completion may tell of it.  GPU memory makes no completion wait.  land() is
  /// to be called at each of dues().
  Instant write(const Write& write, const DeviceFaults& faults, Instant now);
  /// Takes it for later, whatever else is written meanwhile.
  void keep(const Write& write, Instant due);
  /// Of the last write(): when its pieces become visible.
  std::span<const Instant> dues() const { return dues_; }

  /// What is due by now becomes visible.
  void land(Instant now);
  /// What a queue pair, or a write to a region, left open becomes visible: it ends.
  void land_pair(uint32_t pair);
  void land_region(uint32_t region);
  /// The kernel gives the region's pages back, and nothing reaches them any more.
  void lose_region(uint32_t region);
  /// A read reached GPU memory behind all that was written there.
  void flush_gpu();
  /// What is not there yet never will be.
  void lose();
  const Counts& counts() const { return counts_; }

 private:
  struct Piece {
    Instant due;
    std::byte* to = nullptr;
    std::shared_ptr<const std::vector<std::byte>> bytes;
    size_t begin = 0;
    size_t end = 0;
    uint32_t pair = 0;
    uint32_t region = 0;
    bool gpu = false;
  };
  void cut(const Write& write);
  template <typename Which>
  size_t land_if(const Which& which);
  void land_overlapping(const Write& write);

  Random random_;
  std::vector<Piece> pieces_;  ///< in the order in which they came
  std::vector<size_t> cuts_;
  std::vector<Instant> dues_;
  Counts counts_;
};

}  // namespace nccl_ha::sim
