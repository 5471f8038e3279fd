// libibverbs.so.1 with one device, the fake NIC: as much of it as the plugin uses.
#include <endian.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/rig/nic/nic.h"

// The header has macros and inline functions in their place.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_get_device_list

namespace nccl_ha::emulated {
namespace {

ibv_device* the_device() {
  static ibv_device device = [] {
    ibv_device made{};
    std::strcpy(made.name, "fake0");
    made.node_type = IBV_NODE_CA;
    made.transport_type = IBV_TRANSPORT_IB;
    return made;
  }();
  return &device;
}

std::array<uint8_t, 16> the_gid() {  // 127.0.0.1, in IPv6's words
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
}

int poll_cq(ibv_cq* cq, int room, ibv_wc* out) {
  const std::lock_guard lock(Nic::instance().mutex());
  auto* queue = static_cast<Queue*>(cq);
  int count = 0;
  while (count < room && !queue->ready.empty()) {
    out[count++] = queue->ready.front();
    queue->ready.pop_front();
  }
  return count;
}

int req_notify_cq(ibv_cq* cq, int) {
  const std::lock_guard lock(Nic::instance().mutex());
  static_cast<Queue*>(cq)->armed = true;
  return 0;
}

/// False where a key does not fit.
bool describe(const ibv_send_wr& request, Message* message, uint32_t* bytes) {
  message->kind = request.opcode == IBV_WR_RDMA_READ ? MessageKind::read
                  : request.opcode == IBV_WR_SEND || request.opcode == IBV_WR_SEND_WITH_IMM
                      ? MessageKind::send
                      : MessageKind::write;
  message->has_immediate =
      request.opcode == IBV_WR_SEND_WITH_IMM || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  message->immediate = request.imm_data;
  message->address = request.wr.rdma.remote_addr;
  message->key = request.wr.rdma.rkey;
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& sge = request.sg_list[i];
    *bytes += sge.length;
    if ((request.send_flags & IBV_SEND_INLINE) != 0) {
      std::memcpy(message->data.data() + message->inline_bytes,
                  reinterpret_cast<const void*>(sge.addr), sge.length);
      message->inline_bytes += sge.length;
      continue;
    }
    if (sge.length != 0 && Nic::instance().region_of(sge.lkey, sge.addr, sge.length) == nullptr) {
      return false;
    }
    message->pieces[message->piece_count++] = {sge.addr, sge.length};
  }
  return true;
}

ibv_wc_opcode completed(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ                                ? IBV_WC_RDMA_READ
         : opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_SEND
                                                                   : IBV_WC_RDMA_WRITE;
}

int post_send(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** bad) {
  Nic& nic = Nic::instance();
  const std::lock_guard lock(nic.mutex());
  auto& pair = *static_cast<Pair*>(qp);
  for (ibv_send_wr* request = requests; request != nullptr; request = request->next) {
    if (pair.state != IBV_QPS_RTS && pair.state != IBV_QPS_ERR) {
      *bad = request;
      return EINVAL;
    }
    Send send;
    send.id = request->wr_id;
    send.opcode = completed(request->opcode);
    send.signaled = pair.all_signaled || (request->send_flags & IBV_SEND_SIGNALED) != 0;
    Message message;
    const bool good = describe(*request, &message, &send.bytes);
    if (!good || pair.state == IBV_QPS_ERR) {
      // A wrong key puts the pair into error; a pair in error gives everything back.
      pair.sends.push_back(send);
      nic.change_state(pair, IBV_QPS_ERR);
      continue;
    }
    nic.request(pair, send, message);
  }
  return 0;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  Nic& nic = Nic::instance();
  const std::lock_guard lock(nic.mutex());
  auto& pair = *static_cast<Pair*>(qp);
  for (ibv_recv_wr* request = requests; request != nullptr; request = request->next) {
    if (pair.state == IBV_QPS_RESET || request->num_sge > 1) {
      *bad = request;
      return EINVAL;
    }
    Receive receive;
    receive.id = request->wr_id;
    if (request->num_sge == 1) {
      receive.piece = {request->sg_list->addr, request->sg_list->length};
    }
    pair.receives.push_back(receive);
  }
  nic.change_state(pair, pair.state);
  return 0;
}

ibv_mr* add_region(ibv_pd* pd, void* base, size_t length, bool on_device) {
  auto region = std::make_unique<Region>();
  region->context = pd->context;
  region->pd = pd;
  region->addr = base;
  region->length = length;
  region->on_device = on_device;
  const std::lock_guard lock(Nic::instance().mutex());
  return Nic::instance().add_region(std::move(region));
}

}  // namespace
}  // namespace nccl_ha::emulated

using namespace nccl_ha::emulated;

extern "C" {

int ibv_fork_init() { return 0; }

ibv_device** ibv_get_device_list(int* count) {
  *count = 1;
  return new ibv_device* [2] { the_device(), nullptr };
}

void ibv_free_device_list(ibv_device** list) { delete[] list; }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }

ibv_context* ibv_open_device(ibv_device* device) {
  auto* context = new ibv_context{};
  context->device = device;
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = req_notify_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->cmd_fd = -1;
  context->async_fd = eventfd(0, EFD_CLOEXEC);  // nothing ever happens
  context->num_comp_vectors = 1;
  return context;
}

int ibv_close_device(ibv_context* context) {
  close(context->async_fd);
  delete context;
  return 0;
}

int ibv_query_device(ibv_context*, ibv_device_attr* attributes) {
  *attributes = {};
  attributes->node_guid = htobe64(0xfa4e000000000000U + Nic::instance().number());
  attributes->sys_image_guid = attributes->node_guid;
  attributes->max_mr_size = UINT64_MAX;
  attributes->max_qp = 2048;
  attributes->max_qp_wr = 16384;
  attributes->max_sge = pieces_max;
  attributes->max_cq = 1024;
  attributes->max_cqe = 1 << 20;
  attributes->max_mr = 1 << 20;
  attributes->max_pd = 64;
  attributes->max_qp_rd_atom = 16;
  attributes->max_qp_init_rd_atom = 16;
  attributes->max_ah = 1024;
  attributes->phys_port_cnt = 1;
  return 0;
}

int ibv_query_port(ibv_context*, uint8_t, _compat_ibv_port_attr* out) {
  auto* attributes = reinterpret_cast<ibv_port_attr*>(out);
  *attributes = {};
  attributes->state = IBV_PORT_ACTIVE;
  attributes->max_mtu = IBV_MTU_4096;
  attributes->active_mtu = IBV_MTU_4096;
  attributes->gid_tbl_len = 1;
  attributes->max_msg_sz = 1U << 30;
  attributes->pkey_tbl_len = 1;
  attributes->active_width = 2;
  attributes->active_speed = 32;
  attributes->phys_state = 5;
  attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int ibv_query_gid(ibv_context*, uint8_t, int, ibv_gid* gid) {
  std::memcpy(gid->raw, the_gid().data(), the_gid().size());
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context*, ibv_gid_entry* entries, size_t room, uint32_t, size_t) {
  if (room == 0) {
    return 0;
  }
  entries[0] = {};
  std::memcpy(entries[0].gid.raw, the_gid().data(), the_gid().size());
  entries[0].port_num = 1;
  entries[0].gid_type = IBV_GID_TYPE_ROCE_V2;
  entries[0].ndev_ifindex = if_nametoindex("lo");
  return 1;
}

int ibv_get_async_event(ibv_context*, ibv_async_event*) {
  errno = EAGAIN;
  return -1;
}
void ibv_ack_async_event(ibv_async_event*) {}
const char* ibv_event_type_str(ibv_event_type) { return "event"; }
const char* ibv_wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_WR_FLUSH_ERR:
      return "flushed";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retries exceeded";
    default:
      return "error of the fake NIC";
  }
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* pd = new ibv_pd{};
  pd->context = context;
  return pd;
}

int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* base, size_t length, int) {
  return add_region(pd, base, length, false);
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* base, size_t length, uint64_t, unsigned) {
  return add_region(pd, base, length, false);
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t, int fd, int) {
  // The fake CUDA driver's descriptors hold the address.
  uint64_t start = 0;
  if (fd < 0 || pread(fd, &start, sizeof start, 0) != sizeof start) {
    errno = EBADF;
    return nullptr;
  }
  return add_region(pd, reinterpret_cast<void*>(start + offset), length, true);
}

int ibv_dereg_mr(ibv_mr* mr) {
  const std::lock_guard lock(Nic::instance().mutex());
  return Nic::instance().remove_region(static_cast<Region*>(mr)) ? 0 : EINVAL;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return nullptr;
  }
  auto* channel = new Channel{};
  channel->context = context;
  channel->fd = ends[0];
  channel->write_end = ends[1];
  return channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* base) {
  auto* channel = static_cast<Channel*>(base);
  close(channel->fd);
  close(channel->write_end);
  delete channel;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* own, ibv_comp_channel* channel,
                      int) {
  auto* queue = new Queue{};
  queue->context = context;
  queue->cqe = entries;
  queue->cq_context = own;
  queue->channel = channel;
  return queue;
}

int ibv_destroy_cq(ibv_cq* cq) {
  const std::lock_guard lock(Nic::instance().mutex());
  delete static_cast<Queue*>(cq);
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** own) {
  if (read(channel->fd, cq, sizeof *cq) != sizeof *cq) {
    return -1;
  }
  *own = (*cq)->cq_context;
  return 0;
}

void ibv_ack_cq_events(ibv_cq*, unsigned) {}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  if (attributes->qp_type != IBV_QPT_RC || attributes->cap.max_inline_data > inline_max ||
      attributes->cap.max_send_sge > pieces_max) {
    errno = EINVAL;
    return nullptr;
  }
  auto* pair = new Pair{};
  pair->context = pd->context;
  pair->pd = pd;
  pair->send_cq = attributes->send_cq;
  pair->recv_cq = attributes->recv_cq;
  pair->qp_type = attributes->qp_type;
  pair->state = IBV_QPS_RESET;
  pair->all_signaled = attributes->sq_sig_all != 0;
  const std::lock_guard lock(Nic::instance().mutex());
  pair->qp_num = Nic::instance().new_pair_number();
  Nic::instance().add(pair);
  return pair;
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  const std::lock_guard lock(Nic::instance().mutex());
  auto& pair = *static_cast<Pair*>(qp);
  if ((mask & IBV_QP_DEST_QPN) != 0) {
    pair.peer = attributes->dest_qp_num;
  }
  if ((mask & IBV_QP_STATE) != 0) {
    Nic::instance().change_state(pair, attributes->qp_state);
  }
  return 0;
}

int ibv_destroy_qp(ibv_qp* qp) {
  const std::lock_guard lock(Nic::instance().mutex());
  auto* pair = static_cast<Pair*>(qp);
  pair->receives.clear();
  pair->sends.clear();
  Nic::instance().change_state(*pair, IBV_QPS_RESET);
  Nic::instance().remove(pair);
  delete pair;
  return 0;
}

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr*) {
  auto* handle = new ibv_ah{};
  handle->pd = pd;
  return handle;
}

int ibv_destroy_ah(ibv_ah* handle) {
  delete handle;
  return 0;
}

}  // extern "C"
