// What failovers did on one side of a connection.
#pragma once

#include <atomic>
#include <cstdint>

namespace nccl_ha {

/// What failovers did on one side of a connection, for whoever looks.  The actor writes it.
struct FailoverCounts {
  std::atomic<uint64_t> down{0};          ///< paths given up that carried traffic
  std::atomic<uint64_t> back{0};          ///< paths replaced
  std::atomic<uint64_t> moves{0};         ///< sender: traffic went to a shadow or back
  std::atomic<uint64_t> chunks_again{0};  ///< sender: sent once more
  std::atomic<uint64_t> bytes_again{0};
  std::atomic<uint64_t> chunks_kept{0};  ///< sender: had arrived, only the acknowledgement was lost
  std::atomic<uint64_t> longest_ns{0};   ///< from down to back
  std::atomic<uint64_t> rejected{0};     ///< shadows whose device did not take this side's memory

  static void add(std::atomic<uint64_t>& counter, uint64_t by) {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
};

}  // namespace nccl_ha
