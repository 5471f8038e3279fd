#include "runtime/fabric/verbs/flush_queue.h"

#include <fmt/format.h>

#include <cerrno>

namespace nccl_ha::fabric::verbs {

Result<void> FlushQueue::open(ibv_pd* domain, ibv_cq* completions, const PathEnds& ends,
                              const Options& options) {
  if (is_open()) {
    return fail(Errc::invalid_usage, "the queue pair for GPU flushes is opened twice");
  }
  ibv_qp_init_attr attributes{};
  attributes.send_cq = completions;
  attributes.recv_cq = completions;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = flushes_max_;
  attributes.cap.max_recv_wr = 1;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  if (!pair_.create(domain, attributes)) {
    const int error = errno;
    return fail(Errc::system,
                fmt::format("RDMA device {}: cannot create the queue pair for GPU flushes{}",
                            ends.info().device, memlock_hint(error)),
                error);
  }
  if (const int error =
          pair_.initialise(ends.info().port, options.pkey_index, IBV_ACCESS_REMOTE_READ);
      error != 0) {
    return fail(Errc::system,
                fmt::format("RDMA device {}: cannot initialise the queue pair for GPU flushes",
                            ends.info().device),
                error);
  }
  return pair_.make_ready(ends.to_itself(pair_.get()->qp_num), options, ends);
}

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
  const int error = ibv_post_send(pair_.get(), &request, &bad);
  if (error == 0) {
    ring_.push() = post.id;
  }
  return error;
}

}  // namespace nccl_ha::fabric::verbs
