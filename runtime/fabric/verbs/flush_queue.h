// Reads back through the NIC what it wrote to GPU memory, over a queue pair that is connected with
// itself: the read leaves over PCIe behind the writes that arrived before it.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "runtime/fabric/path.h"
#include "runtime/fabric/verbs/post_ring.h"
#include "runtime/fabric/verbs/scratch.h"
#include "runtime/fabric/verbs/work_id.h"

namespace nccl_ha::fabric::verbs {

class FlushQueue {
 public:
  /// With room for `flushes_max`.
  FlushQueue(const WorkId& ids, uint32_t flushes_max)
      : ids_(ids), flushes_max_(flushes_max), ring_(flushes_max) {}

  /// The queue pair is there.
  void open(ibv_qp* pair) { pair_ = pair; }
  bool is_open() const { return pair_ != nullptr; }
  const ibv_qp* pair() const { return pair_; }

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
  const WorkIds ids_;
  const uint32_t flushes_max_;
  ibv_qp* pair_ = nullptr;
  PostRing<uint64_t> ring_;
};

}  // namespace nccl_ha::fabric::verbs
