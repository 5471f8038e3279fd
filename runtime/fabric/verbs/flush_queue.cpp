#include "runtime/fabric/verbs/flush_queue.h"

namespace nccl_ha::fabric::verbs {

int FlushQueue::post(const FlushPost& post, Scratch& scratch) {
  // One byte: memory may end behind the last one that was received.
  ibv_sge sge{reinterpret_cast<uint64_t>(scratch.target()), 1, scratch.key()};
  ibv_send_wr request{};
  request.wr_id = ids_.at(ring_.tail());
  request.sg_list = &sge;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = post.address;
  request.wr.rdma.rkey = post.remote_key;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(pair_, &request, &bad);
  if (error == 0) {
    ring_.push() = post.id;
  }
  return error;
}

}  // namespace nccl_ha::fabric::verbs
