// Reads back through the NIC what it wrote to GPU memory, over a queue pair that is connected with
// itself: the read leaves over PCIe behind the writes that arrived before it.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "runtime/base/result.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/verbs/path_ends.h"
#include "runtime/fabric/verbs/post_ring.h"
#include "runtime/fabric/verbs/queue_pair.h"
#include "runtime/fabric/verbs/scratch.h"
#include "runtime/fabric/verbs/work_id.h"

namespace nccl_ha::fabric::verbs {

class FlushQueue {
 public:
  /// With room for `flushes_max`.
  FlushQueue(const Device& device, const WorkId& ids, uint32_t flushes_max)
      : ids_(ids), flushes_max_(flushes_max), pair_(device), ring_(flushes_max) {}

  Result<void> open(ibv_pd* domain, ibv_cq* completions, const PathEnds& ends,
                    const Options& options);
  bool is_open() const { return pair_.get() != nullptr; }
  QueuePair& pair() { return pair_; }
  const QueuePair& pair() const { return pair_; }

  bool empty() const { return ring_.empty(); }
  bool full() const { return ring_.size() >= flushes_max_; }
  uint32_t head() const { return ring_.head(); }
  /// 0 or an errno value.
  int post(const FlushPost& post, Scratch& scratch);
  /// One at this position is open.
  bool holds(uint32_t position) const { return ring_.ahead_of(position) < ring_.size(); }
  /// The id of the oldest one, which has come back.
  uint64_t pop() { return ring_.pop(); }

 private:
  const WorkId ids_;
  const uint32_t flushes_max_;
  QueuePair pair_;
  PostRing<uint64_t> ring_;
};

}  // namespace nccl_ha::fabric::verbs
