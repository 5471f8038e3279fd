// A queue pair's states, and what is posted to it.
#include "tests/rig/nic/pair.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tests/rig/nic/nic.h"

namespace nccl_ha::emulated {
namespace {

constexpr uint64_t timeout_unit = 4096;  // nanoseconds, IBTA 11.6.2

ibv_wc_opcode completed(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return IBV_WC_SEND;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_RDMA_WRITE;
  }
}

uint32_t operation(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_READ:
      return op_read;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return op_send;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return op_write;
    default:
      return op_atomic;
  }
}

}  // namespace

Pair::Pair(Nic& nic, Context& owner, const ibv_qp_init_attr& attributes)
    : nic_(nic), owner_(owner), limits_(attributes.cap), all_signaled_(attributes.sq_sig_all != 0) {
  static_cast<ibv_qp&>(*this) = {};
  context = &owner;
  qp_context = attributes.qp_context;
  send_cq = attributes.send_cq;
  recv_cq = attributes.recv_cq;
  qp_type = attributes.qp_type;
  state = IBV_QPS_RESET;
}

bool Pair::moves() const { return !silent_ && owner_.on->moves_data(owner_.generation); }

int Pair::modify(const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_PORT) != 0) {
    if (attributes.port_num == 0 || attributes.port_num > nic_.settings().ports) {
      return EINVAL;
    }
    route_.port = attributes.port_num;
  }
  if ((mask & IBV_QP_AV) != 0) {
    if (const int error = owner_.on->refuse(attributes.ah_attr); error != 0) {
      return error;
    }
    route_.to = *place_of(attributes.ah_attr);
    route_.way = attributes.ah_attr;
  }
  if ((mask & IBV_QP_PKEY_INDEX) != 0) {
    if (attributes.pkey_index >= pkeys) {
      return EINVAL;
    }
    route_.pkey_index = attributes.pkey_index;
  }
  if ((mask & IBV_QP_DEST_QPN) != 0) {
    route_.peer = attributes.dest_qp_num;
  }
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) {
    route_.access = static_cast<uint32_t>(attributes.qp_access_flags);
  }
  if ((mask & IBV_QP_QKEY) != 0) {
    route_.queue_key = attributes.qkey;
  }
  if ((mask & IBV_QP_RQ_PSN) != 0) {
    expected_ = attributes.rq_psn;
  }
  if ((mask & IBV_QP_SQ_PSN) != 0) {
    next_sequence_ = to_send_ = acknowledged_ = attributes.sq_psn;
  }
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) {
    route_.not_ready_timer = attributes.min_rnr_timer;
  }
  if ((mask & IBV_QP_TIMEOUT) != 0) {
    route_.retry_after = attributes.timeout == 0
                             ? 0
                             : (timeout_unit << attributes.timeout) * nic_.settings().retry_factor;
  }
  if ((mask & IBV_QP_RETRY_CNT) != 0) {
    route_.retry_max = attributes.retry_cnt;
  }
  if ((mask & IBV_QP_RNR_RETRY) != 0) {
    route_.not_ready_max = attributes.rnr_retry;
  }
  if ((mask & IBV_QP_STATE) != 0) {
    stop(attributes.qp_state);
    state = attributes.qp_state;
  }
  return 0;
}

/// Into this state: where it is one that ends work, all of that comes back, or none (reset).
void Pair::stop(ibv_qp_state to) {
  Memory& memory = owner_.on->memory();
  if (to == IBV_QPS_ERR && state != IBV_QPS_ERR) {
    memory.land();
    state = to;
    flush_all();
  } else if (to == IBV_QPS_RESET) {
    memory.land();
    sends_.clear();
    receives_.clear();
    for (ibv_cq* cq : {send_cq, recv_cq}) {
      static_cast<Queue*>(cq)->drop(this);
    }
    freed_sends_ = posted_sends_;
    freed_receives_ = posted_receives_;
  }
  if (to == IBV_QPS_ERR || to == IBV_QPS_RESET) {
    nic_.set_timer(*this, 0);
  }
}

void Pair::flush_all() {
  for (const Send& send : std::exchange(sends_, {})) {
    complete_send(send, IBV_WC_WR_FLUSH_ERR);
  }
  while (!receives_.empty()) {
    complete_receive(IBV_WC_WR_FLUSH_ERR, {}, 0);
  }
}

void Pair::complete_send(const Send& send, ibv_wc_status status) {
  if (silent_ || (status == IBV_WC_SUCCESS && !send.signaled)) {
    return;
  }
  Entry entry;
  entry.wc.wr_id = send.id;
  entry.wc.status = status;
  entry.wc.opcode = completed(send.opcode);
  entry.wc.byte_len = send.bytes;
  entry.wc.qp_num = qp_num;
  entry.pair = this;
  entry.done = send.index + 1;
  nic_.complete(send_cq, entry);
}

/// Of the first receive.
void Pair::complete_receive(ibv_wc_status status, const Header& header, uint32_t bytes) {
  const Receive receive = receives_.front();
  receives_.pop_front();
  if (silent_) {
    return;
  }
  Entry entry;
  entry.wc.wr_id = receive.id;
  entry.wc.status = status;
  entry.wc.opcode = header.kind == PacketKind::write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  entry.wc.byte_len = bytes;
  entry.wc.qp_num = qp_num;
  entry.wc.src_qp = header.from_pair;
  entry.wc.wc_flags = (header.flags & packet_immediate) != 0 ? unsigned{IBV_WC_WITH_IMM} : 0U;
  entry.wc.imm_data = header.immediate;
  if (header.kind == PacketKind::datagram) {
    entry.wc.wc_flags |= IBV_WC_GRH;
  }
  entry.pair = this;
  entry.receive = true;
  nic_.complete(recv_cq, entry);
}

void Pair::on_polled(const Entry& entry) {
  if (entry.receive) {
    ++freed_receives_;
  } else {
    freed_sends_ = entry.done;
  }
}

/// An errno.
int Pair::describe(const ibv_send_wr& request, Send* out) const {
  out->id = request.wr_id;
  out->opcode = request.opcode;
  out->signaled = all_signaled_ || (request.send_flags & IBV_SEND_SIGNALED) != 0;
  out->immediate = request.imm_data;
  if (static_cast<uint32_t>(request.num_sge) > limits_.max_send_sge) {
    return EINVAL;
  }
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& sge = request.sg_list[i];
    out->bytes += sge.length;
    if ((request.send_flags & IBV_SEND_INLINE) != 0) {
      const auto* from = reinterpret_cast<const char*>(sge.addr);
      out->inlined.insert(out->inlined.end(), from, from + sge.length);
    } else if (sge.length != 0) {
      out->pieces.push_back({sge.addr, sge.length, sge.lkey});
    }
  }
  if (out->inlined.size() > limits_.max_inline_data) {
    return EINVAL;
  }
  if (datagrams()) {
    const auto to = place_of(static_cast<const Handle*>(request.wr.ud.ah)->route);
    if (out->bytes > nic_.settings().mtu || !to || operation(request.opcode) != op_send) {
      return EINVAL;
    }
    out->to = *to;
    out->to_pair = request.wr.ud.remote_qpn;
    out->queue_key = request.wr.ud.remote_qkey;
    return 0;
  }
  out->address = request.wr.rdma.remote_addr;
  out->key = request.wr.rdma.rkey;
  const bool itself = route_.to == owner_.on->place(route_.port);
  out->forbidden = !itself && (operation(request.opcode) & nic_.settings().forbid) != 0;
  const uint64_t packet = nic_.settings().packet;
  out->packets = out->reads() ? 1 : std::max<uint64_t>((out->bytes + packet - 1) / packet, 1);
  return 0;
}

int Pair::post_send(ibv_send_wr* requests, ibv_send_wr** bad) {
  for (ibv_send_wr* request = requests; request != nullptr; request = request->next) {
    Send send;
    int error = state == IBV_QPS_RTS || state == IBV_QPS_ERR ? 0 : EINVAL;
    if (error == 0 && posted_sends_ - freed_sends_.load() >= limits_.max_send_wr) {
      error = ENOMEM;
    }
    if (error == 0) {
      error = describe(*request, &send);
    }
    if (error != 0) {
      *bad = request;
      pump();
      return error;
    }
    send.index = posted_sends_++;
    send.first = next_sequence_;
    next_sequence_ += send.packets;
    if (state == IBV_QPS_ERR) {
      complete_send(send, IBV_WC_WR_FLUSH_ERR);
    } else {
      sends_.push_back(std::move(send));
    }
  }
  pump();
  return 0;
}

int Pair::post_receive(ibv_recv_wr* requests, ibv_recv_wr** bad) {
  for (ibv_recv_wr* request = requests; request != nullptr; request = request->next) {
    const bool full = posted_receives_ - freed_receives_.load() >= limits_.max_recv_wr;
    if (state == IBV_QPS_RESET || request->num_sge > 1 || full) {
      *bad = request;
      return full ? ENOMEM : EINVAL;
    }
    Receive receive;
    receive.id = request->wr_id;
    if (request->num_sge == 1) {
      receive.piece = {request->sg_list->addr, request->sg_list->length, request->sg_list->lkey};
    }
    ++posted_receives_;
    receives_.push_back(receive);
    if (state == IBV_QPS_ERR) {
      complete_receive(IBV_WC_WR_FLUSH_ERR, {}, 0);
    }
  }
  return 0;
}

void Pair::take(const Header& header, std::span<const char> payload) {
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS) {
    return;
  }
  if (datagrams() || header.kind == PacketKind::datagram) {
    if (datagrams() && header.kind == PacketKind::datagram) {
      on_datagram(header, payload);
    }
    return;
  }
  if (header.from_pair != route_.peer || header.from != route_.to) {
    return;
  }
  switch (header.kind) {
    case PacketKind::ack:
      on_acknowledged(header.sequence);
      pump();
      return;
    case PacketKind::nak:
      on_refused(header);
      pump();
      return;
    case PacketKind::response:
      on_response(header, payload);
      pump();
      return;
    default:
      on_request(header, payload);
      return;
  }
}

}  // namespace nccl_ha::emulated
