// The simulated NICs' side of rdma-core's interface.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/rig/sim/rdma_objects.h"

namespace nccl_ha::sim {

using fabric::verbs::Library;

struct RdmaFunctions {
  static RdmaNic& nic(ibv_context* context) {
    return *static_cast<RdmaNic::Context*>(context)->nic;
  }
  static const char* name(ibv_device* device) {
    return static_cast<RdmaNic::Device*>(device)->nic->name_.c_str();
  }
  static ibv_context* open(ibv_device* device) {
    RdmaNic& opened = *static_cast<RdmaNic::Device*>(device)->nic;
    ibv_context_ops& ops = opened.context_->ops;
    ops.poll_cq = poll;
    ops.post_send = post_send;
    ops.post_recv = post_receive;
    ops.req_notify_cq = [](ibv_cq*, int) { return 0; };
    return opened.context_.get();
  }
  static int query_device(ibv_context* context, ibv_device_attr* attributes) {
    *attributes = {};
    attributes->max_qp = 100000;
    attributes->max_qp_wr = 16384;
    attributes->max_cqe = 1 << 20;
    attributes->phys_port_cnt = static_cast<uint8_t>(nic(context).ports_.size());
    attributes->node_guid = nic(context).number_ + 1;
    return 0;
  }
  static int query_port(ibv_context* context, uint8_t number, ibv_port_attr* attributes) {
    const RdmaNic& asked = nic(context);
    if (asked.failed_ || asked.removing_) {
      return EIO;
    }
    const RdmaNic::Port& port = asked.ports_[number - 1U];
    *attributes = {};
    attributes->state = port.up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    attributes->active_mtu = asked.traits_.mtu == 4096   ? IBV_MTU_4096
                             : asked.traits_.mtu == 2048 ? IBV_MTU_2048
                                                         : IBV_MTU_1024;
    attributes->max_mtu = IBV_MTU_4096;
    attributes->gid_tbl_len = 4;
    attributes->max_msg_sz = asked.traits_.message_max;
    attributes->active_width = 2;
    attributes->active_speed = 32;
    attributes->lid = asked.traits_.infiniband ? port.lid : uint16_t{0};
    attributes->link_layer =
        asked.traits_.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
    return 0;
  }
  static ssize_t query_gids(ibv_context* context, ibv_gid_entry* entries, size_t room, uint32_t,
                            size_t) {
    const RdmaNic& asked = nic(context);
    size_t count = 0;
    for (; count < std::min(room, asked.ports_.size()) && !asked.traits_.infiniband; ++count) {
      const RdmaNic::Port& port = asked.ports_[count];
      ibv_gid_entry& entry = entries[count];
      entry = {};
      entry.gid_index = port.gid_place;
      entry.port_num = static_cast<uint32_t>(count + 1);
      entry.gid_type = IBV_GID_TYPE_ROCE_V2;
      entry.gid.raw[10] = 0xFF;
      entry.gid.raw[11] = 0xFF;
      for (size_t i = 0; i < 4; ++i) {
        entry.gid.raw[12 + i] = static_cast<uint8_t>(port.address >> (24 - 8 * i));
      }
    }
    return static_cast<ssize_t>(count);
  }
  static int get_event(ibv_context* context, ibv_async_event* event) {
    RdmaNic& told = nic(context);
    if (told.events_.empty()) {
      const bool closed = told.traits_.old_kernel && told.network_.now() >= told.gone_at_;
      errno = closed ? EIO : EAGAIN;
      return -1;
    }
    *event = told.events_.front();
    told.events_.erase(told.events_.begin());
    return 0;
  }

  static ibv_pd* make_domain(ibv_context* context) {
    auto* domain = new ibv_pd{};
    domain->context = context;
    return domain;
  }
  static ibv_mr* add_region(ibv_pd* domain, void* base, size_t length) {
    RdmaNic& at = nic(domain->context);
    auto* region = new RdmaNic::Region{};
    region->context = domain->context;
    region->pd = domain;
    region->addr = base;
    region->length = length;
    // No two devices share a key, and none is both local and remote: who confuses them is refused.
    region->lkey = at.number_ << 22 | at.next_key_++ << 1;
    region->rkey = region->lkey | 1;
    at.regions_[region->lkey] = region;
    at.regions_[region->rkey] = region;
    return region;
  }
  static ibv_mr* make_region(ibv_pd* domain, void* base, size_t length, int) {
    return nic(domain->context).call(Verb::register_memory) != 0 ? nullptr
                                                                 : add_region(domain, base, length);
  }
  static ibv_mr* make_region_at(ibv_pd* domain, void* base, size_t length, uint64_t,
                                unsigned access) {
    ibv_mr* region = make_region(domain, base, length, 0);
    if (region != nullptr) {
      static_cast<RdmaNic::Region*>(region)->relaxed = (access & IBV_ACCESS_RELAXED_ORDERING) != 0;
    }
    return region;
  }
  /// All memory of a simulation lies at its address, whatever its descriptor says.
  static ibv_mr* make_dmabuf_region(ibv_pd* domain, uint64_t, size_t length, uint64_t address,
                                    int fd, int access) {
    if (!nic(domain->context).traits_.gpu || fd < 0) {
      errno = nic(domain->context).traits_.gpu ? EBADF : EOPNOTSUPP;
      return nullptr;
    }
    if (nic(domain->context).call(Verb::register_dmabuf) != 0) {
      return nullptr;
    }
    auto* region =
        static_cast<RdmaNic::Region*>(add_region(domain, reinterpret_cast<void*>(address), length));
    region->gpu = true;
    nic(domain->context).network_.gpu_memory().add(region->addr, region->length);
    region->relaxed = (access & IBV_ACCESS_RELAXED_ORDERING) != 0;
    return region;
  }
  static int free_region(ibv_mr* region) {
    RdmaNic& at = nic(region->context);
    if (static_cast<RdmaNic::Region*>(region)->gpu) {
      at.network_.gpu_memory().remove(region->addr, region->length);
    }
    at.regions_.erase(region->lkey);
    at.regions_.erase(region->rkey);
    if (at.failed_) {
      at.memory_.lose_region(region->lkey);
    } else {
      at.memory_.land_region(region->lkey);
    }
    delete static_cast<RdmaNic::Region*>(region);
    return 0;
  }

  static ibv_comp_channel* make_channel(ibv_context* context) {
    if (nic(context).call(Verb::create_channel) != 0) {
      return nullptr;
    }
    auto* channel = new ibv_comp_channel{};
    channel->context = context;
    channel->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    nic(context).channels_.push_back(channel);
    return channel;
  }
  static int free_channel(ibv_comp_channel* channel) {
    std::erase(nic(channel->context).channels_, channel);
    close(channel->fd);
    delete channel;
    return 0;
  }
  static ibv_cq* make_queue(ibv_context* context, int entries, void* own, ibv_comp_channel* channel,
                            int) {
    if (nic(context).call(Verb::create_queue) != 0) {
      return nullptr;
    }
    auto* queue = new RdmaNic::CompletionQueue{};
    queue->context = context;
    queue->channel = channel;
    queue->cq_context = own;
    queue->cqe = entries;
    queue->nic = &nic(context);
    queue->nic->queues_.push_back(queue);
    return queue;
  }
  static int free_queue(ibv_cq* queue) {
    std::erase(nic(queue->context).queues_, queue);
    delete static_cast<RdmaNic::CompletionQueue*>(queue);
    return 0;
  }
  static int poll(ibv_cq* queue, int room, ibv_wc* out) {
    auto& from = *static_cast<RdmaNic::CompletionQueue*>(queue);
    if (from.broken) {
      return -1;
    }
    int count = 0;
    while (count < room && !from.entries.empty() &&
           from.entries.front().due <= from.nic->network_.now()) {
      if (from.nic->call(Verb::poll, false) != 0) {
        from.broken = true;
        return count != 0 ? count : -1;
      }
      out[count++] = from.entries.front().completion;
      from.entries.pop_front();
    }
    return count;
  }

  static ibv_qp* make_pair(ibv_pd* domain, ibv_qp_init_attr* attributes) {
    RdmaNic& at = nic(domain->context);
    if (at.call(Verb::create_pair) != 0) {
      return nullptr;
    }
    auto* pair = new RdmaQueuePair{};
    pair->nic = &at;
    pair->context = domain->context;
    pair->pd = domain;
    pair->send_cq = attributes->send_cq;
    pair->recv_cq = attributes->recv_cq;
    pair->qp_type = attributes->qp_type;
    pair->state = IBV_QPS_RESET;
    pair->qp_num = at.next_pair_++;
    pair->sends_max = attributes->cap.max_send_wr;
    pair->responder.set_receives_max(attributes->cap.max_recv_wr);
    attributes->cap.max_inline_data =
        std::min(attributes->cap.max_inline_data, at.traits_.inline_max);
    pair->inline_max = attributes->cap.max_inline_data;
    at.pairs_[pair->qp_num] = pair;
    return pair;
  }
  static int modify(ibv_qp* queue_pair, ibv_qp_attr* attributes, int mask) {
    auto& pair = *static_cast<RdmaQueuePair*>(queue_pair);
    RdmaNic& at = *pair.nic;
    if (at.lies() && attributes->qp_state == IBV_QPS_ERR) {
      return 0;
    }
    if (const int error = at.call(verb_of(attributes->qp_state)); error != 0) {
      return error;
    }
    if ((mask & IBV_QP_PORT) != 0) {
      pair.port = attributes->port_num - 1U;
    }
    if ((mask & IBV_QP_AV) != 0) {
      const RdmaRoute route = route_of(at, attributes->ah_attr);
      pair.gid_place = route.gid_place;
      pair.to = route.to;
      pair.asked.ah_attr = attributes->ah_attr;
    }
    if ((mask & IBV_QP_PKEY_INDEX) != 0) {
      pair.asked.pkey_index = attributes->pkey_index;
    }
    if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) {
      pair.asked.min_rnr_timer = attributes->min_rnr_timer;
    }
    if ((mask & IBV_QP_RNR_RETRY) != 0) {
      pair.asked.rnr_retry = attributes->rnr_retry;
    }
    if ((mask & IBV_QP_DEST_QPN) != 0) {
      pair.to_pair = attributes->dest_qp_num;
      pair.mtu = 128U << static_cast<unsigned>(attributes->path_mtu);
      pair.responder.start(attributes->rq_psn);
    }
    if ((mask & IBV_QP_TIMEOUT) != 0) {
      const Duration timeout(int64_t{4096} << attributes->timeout);  // IBTA 11.6.2
      pair.requester.start(attributes->sq_psn, timeout, attributes->retry_cnt);
      pair.asked.timeout = attributes->timeout;
      pair.asked.retry_cnt = attributes->retry_cnt;
    }
    pair.not_ready_wait = std::chrono::microseconds(640);
    if (attributes->qp_state == IBV_QPS_ERR) {
      at.end_slowly(pair);
    } else {
      pair.state = attributes->qp_state;
    }
    return 0;
  }
  static Verb verb_of(ibv_qp_state state) {
    switch (state) {
      case IBV_QPS_RTR:
        return Verb::to_ready_to_receive;
      case IBV_QPS_RTS:
        return Verb::to_ready_to_send;
      case IBV_QPS_ERR:
        return Verb::to_error;
      default:
        return Verb::to_init;
    }
  }
  static RdmaRoute route_of(const RdmaNic& at, const ibv_ah_attr& attributes) {
    RdmaRoute route{};
    if (attributes.is_global != 0) {
      route.gid_place = attributes.grh.sgid_index;
      for (size_t i = 12; i < 16; ++i) {
        route.to = route.to << 8 | attributes.grh.dgid.raw[i];
      }
    } else {
      route.to = at.address_of_lid(attributes.dlid);
    }
    return route;
  }
  static int free_pair(ibv_qp* queue_pair) {
    auto* pair = static_cast<RdmaQueuePair*>(queue_pair);
    if (pair->nic->lies()) {
      return 0;
    }
    if (const int error = pair->nic->call(Verb::destroy_pair, false); error != 0) {
      return error;
    }
    pair->nic->release(*pair);
    delete pair;
    return 0;
  }
  static int post_send(ibv_qp* queue_pair, ibv_send_wr* request, ibv_send_wr** bad) {
    auto& pair = *static_cast<RdmaQueuePair*>(queue_pair);
    for (; request != nullptr; request = request->next) {
      if (pair.state != IBV_QPS_RTS && pair.state != IBV_QPS_ERR) {
        *bad = request;
        return EINVAL;
      }
      if (const int error = pair.nic->call(Verb::post_send, false); error != 0) {
        *bad = request;
        return error;
      }
      if (pair.qp_type == IBV_QPT_UD) {
        pair.nic->post_datagram(pair, *request);
      } else {
        pair.nic->post_send(pair, *request);
      }
    }
    return 0;
  }
  static int post_receive(ibv_qp* queue_pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
    auto& pair = *static_cast<RdmaQueuePair*>(queue_pair);
    for (; request != nullptr; request = request->next) {
      if (pair.state == IBV_QPS_RESET || pair.responder.full()) {
        *bad = request;
        return ENOMEM;
      }
      if (const int error = pair.nic->call(Verb::post_receive, false); error != 0) {
        *bad = request;
        return error;
      }
      RdmaReceive receive{request->wr_id, {}};
      if (request->num_sge != 0) {
        receive.buffer = request->sg_list[0];
      }
      pair.responder.post(receive);
    }
    if (pair.state == IBV_QPS_ERR && !pair.lags) {
      pair.nic->flush(pair, IBV_WC_WR_FLUSH_ERR);
    }
    return 0;
  }

  static Library library() {
    Library table;
    table.waited = [](ibv_context* context) -> Duration& {
      return static_cast<RdmaNic::Context*>(context)->nic->conditions_.waited;
    };
    table.device.get_name = name;
    table.device.open = open;
    table.device.close = [](ibv_context*) { return 0; };
    table.device.query = query_device;
    table.device.query_port = query_port;
    table.device.query_gid = [](ibv_context*, uint8_t, int, ibv_gid*) { return -1; };
    table.device.query_gid_table = query_gids;
    table.event.get = get_event;
    table.event.ack = [](ibv_async_event*) {};
    table.event.type_text = [](ibv_event_type) { return "simulated event"; };
    table.completion.status_text = [](ibv_wc_status status) {
      return status == IBV_WC_RETRY_EXC_ERR ? "transport retry counter exceeded" : "simulated";
    };
    table.memory.alloc_domain = make_domain;
    table.memory.free_domain = [](ibv_pd* domain) {
      delete domain;
      return 0;
    };
    table.memory.reg = make_region;
    table.memory.reg_iova2 = make_region_at;
    table.memory.reg_dmabuf = make_dmabuf_region;
    table.memory.dereg = free_region;
    table.completion.create_channel = make_channel;
    table.completion.destroy_channel = free_channel;
    table.completion.create_queue = make_queue;
    table.completion.destroy_queue = free_queue;
    table.completion.get_event = [](ibv_comp_channel*, ibv_cq**, void**) {
      errno = EAGAIN;
      return -1;
    };
    table.completion.ack_events = [](ibv_cq*, unsigned) {};
    table.queue_pair.create = make_pair;
    table.queue_pair.modify = modify;
    table.queue_pair.destroy = free_pair;
    table.address_handle.create = [](ibv_pd* domain, ibv_ah_attr* attributes) -> ibv_ah* {
      if (nic(domain->context).call(Verb::make_route, false) != 0) {
        return nullptr;
      }
      auto* handle = new RdmaRoute(route_of(nic(domain->context), *attributes));
      handle->pd = domain;
      handle->neighbours = nic(domain->context).neighbours_;
      return handle;
    };
    table.address_handle.destroy = [](ibv_ah* handle) {
      delete static_cast<RdmaRoute*>(handle);
      return 0;
    };
    return table;
  }
};

const Library& rdma_library() {
  static const Library library = RdmaFunctions::library();
  return library;
}

}  // namespace nccl_ha::sim
