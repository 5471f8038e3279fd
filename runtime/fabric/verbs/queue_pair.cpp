#include "runtime/fabric/verbs/queue_pair.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/fabric/verbs/path_ends.h"

namespace nccl_ha::fabric::verbs {
namespace {

constexpr uint8_t rnr_timer = 12;          // 0.64 ms (IBTA table 46)
constexpr uint8_t rnr_retry_for_ever = 7;  // a peer that is slow to post is not dead

}  // namespace

int QueuePair::destroy() {
  tried_ = true;
  const int error = pair_ == nullptr ? 0 : device_.library().queue_pair.destroy(pair_);
  if (error != 0) {
    NHA_LOG_DEBUG("RDMA device {}: cannot destroy a queue pair", device_.name());
  } else {
    pair_ = nullptr;
  }
  return error;
}

bool QueuePair::create(ibv_pd* domain, ibv_qp_init_attr& attributes) {
  NHA_ASSERT(pair_ == nullptr, "a queue pair is made once");
  pair_ = device_.library().queue_pair.create(domain, &attributes);
  return pair_ != nullptr;
}

int QueuePair::initialise(uint8_t port, uint16_t pkey_index, unsigned access) {
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = pkey_index;
  init.port_num = port;
  init.qp_access_flags = access;
  return device_.library().queue_pair.modify(
      pair_, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int QueuePair::stop() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  return device_.library().queue_pair.modify(pair_, &attributes, IBV_QP_STATE);
}

Result<void> QueuePair::make_ready(const Connection& connection, const Options& options,
                                   const PathEnds& ends) {
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = connection.mtu;
  receive.dest_qp_num = connection.peer;
  receive.rq_psn = connection.peer_sequence;
  receive.max_dest_rd_atomic = 1;
  receive.min_rnr_timer = rnr_timer;
  receive.ah_attr = connection.route;
  if (const int error = device_.library().queue_pair.modify(
          pair_, &receive,
          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
      error != 0) {
    return ends.no_way(error);
  }
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = options.timeout;
  send.retry_cnt = options.retry_count;
  send.rnr_retry = rnr_retry_for_ever;
  send.sq_psn = connection.own_sequence;
  send.max_rd_atomic = 1;
  if (const int error = device_.library().queue_pair.modify(
          pair_, &send,
          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
              IBV_QP_MAX_QP_RD_ATOMIC);
      error != 0) {
    return fail(
        Errc::system,
        fmt::format("RDMA device {}: cannot make a queue pair ready to send", device_.name()),
        error);
  }
  return {};
}

}  // namespace nccl_ha::fabric::verbs
