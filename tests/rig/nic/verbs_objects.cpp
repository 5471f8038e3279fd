// libibverbs.so.1 over the emulated NICs: memory, queues, queue pairs and address handles.
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <memory>

#include "tests/rig/nic/nic.h"

#undef ibv_reg_mr

namespace nccl_ha::emulated {
namespace {

constexpr int acknowledge_ms = 10'000;

Nic& nic() { return Nic::instance(); }
const Settings& settings() { return nic().settings(); }
Verdict command(ibv_context* context, Duration cost, Command kind = Command::other) {
  return of(context).on->firmware().command(kind, cost, of(context).generation);
}

/// A real library waits without end.
void await_acknowledgements(const char* what, const std::function<bool()>& done) {
  for (int waited = 0; !done(); ++waited) {
    if (waited == acknowledge_ms) {
      std::fprintf(stderr, "emulated NIC: %s is destroyed, but its events are not acknowledged\n",
                   what);
      return;
    }
    poll(nullptr, 0, 1);
  }
}

/// What ends a queue pair was not carried out.
int answer_only(ibv_qp* qp, const Verdict& verdict) {
  if (verdict.error == 0) {
    const std::lock_guard lock(nic().mutex());
    of(qp).pretend_end();
  }
  return verdict.error;
}

template <class Object>
Object* refuse(int error) {
  errno = error;
  return nullptr;
}

ibv_mr* register_memory(ibv_pd* domain, void* base, size_t length, unsigned access,
                        bool on_device) {
  constexpr size_t page = 4096;
  const auto pages = static_cast<int64_t>((length + page - 1) / page);
  const Verdict verdict = command(domain->context, settings().reg_mr + pages * settings().reg_page);
  if (verdict.error != 0) {
    return refuse<ibv_mr>(verdict.error);
  }
  auto region = std::make_unique<Region>();
  region->context = domain->context;
  region->pd = domain;
  region->addr = base;
  region->length = length;
  region->on_device = on_device;
  region->access = access;
  const std::lock_guard lock(nic().mutex());
  Memory& memory = of(domain->context).on->memory();
  if (memory.count() >= settings().max_mr) {
    return refuse<ibv_mr>(ENOMEM);
  }
  ++of(domain).users;
  return memory.add(std::move(region));
}

}  // namespace
}  // namespace nccl_ha::emulated

using namespace nccl_ha::emulated;

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  if (const Verdict verdict = command(context, Duration(0)); verdict.error != 0) {
    return refuse<ibv_pd>(verdict.error);
  }
  auto* domain = new Domain{};
  domain->context = context;
  return domain;
}

int ibv_dealloc_pd(ibv_pd* domain) {
  const Verdict verdict = command(domain->context, Duration(0), Command::ends);
  if (verdict.error == 0 && of(domain).users != 0) {
    return EBUSY;
  }
  if (verdict.error == 0) {
    delete &of(domain);
  }
  return verdict.error;
}

ibv_mr* ibv_reg_mr(ibv_pd* domain, void* base, size_t length, int access) {
  return register_memory(domain, base, length, static_cast<unsigned>(access), false);
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* base, size_t length, uint64_t, unsigned access) {
  return register_memory(domain, base, length, access, false);
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, uint64_t offset, size_t length, uint64_t, int fd,
                          int access) {
  if (!settings().dmabuf) {
    return refuse<ibv_mr>(EOPNOTSUPP);
  }
  // The fake CUDA driver's descriptors hold the address.
  uint64_t start = 0;
  if (fd < 0 || pread(fd, &start, sizeof start, 0) != sizeof start) {
    return refuse<ibv_mr>(EBADF);
  }
  return register_memory(domain, reinterpret_cast<void*>(start + offset), length,
                         static_cast<unsigned>(access), true);
}

int ibv_dereg_mr(ibv_mr* mr) {
  const Verdict verdict = command(mr->context, settings().dereg_mr, Command::ends);
  if (!verdict.carried_out) {
    return verdict.error;  // pretended: the device can still write there
  }
  const std::lock_guard lock(nic().mutex());
  --of(mr->pd).users;
  of(mr->context).on->memory().remove(static_cast<Region*>(mr));
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* channel = new Channel{};
  channel->context = context;
  channel->fd = channel->events.fd();
  const std::lock_guard lock(nic().mutex());
  of(context).on->channels().push_back(channel);
  if (of(context).taken_away && !settings().old_kernel) {
    channel->events.end();
  }
  return channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* base) {
  auto* channel = static_cast<Channel*>(base);
  {
    const std::lock_guard lock(nic().mutex());
    std::erase(of(channel->context).on->channels(), channel);
  }
  delete channel;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* own, ibv_comp_channel* channel,
                      int) {
  if (entries < 1 || static_cast<uint64_t>(entries) > settings().max_cqe) {
    return refuse<ibv_cq>(EINVAL);
  }
  if (const Verdict verdict = command(context, settings().create_cq); verdict.error != 0) {
    return refuse<ibv_cq>(verdict.error);
  }
  const std::lock_guard lock(nic().mutex());
  if (of(context).on->queues().size() >= settings().max_cq) {
    return refuse<ibv_cq>(ENOMEM);
  }
  auto* queue = new Queue{};
  queue->context = context;
  queue->cqe = entries;
  queue->cq_context = own;
  queue->channel = channel;
  of(context).on->queues().push_back(queue);
  return queue;
}

int ibv_destroy_cq(ibv_cq* cq) {
  const Verdict verdict = command(cq->context, settings().destroy_qp, Command::ends);
  if (!verdict.carried_out) {
    return verdict.error;
  }
  if (of(cq).users != 0) {
    return EBUSY;
  }
  if (cq->channel != nullptr) {
    static_cast<Channel*>(cq->channel)->events.drop([&](const ibv_cq* one) { return one == cq; });
  }
  await_acknowledgements("a completion queue", [&] { return of(cq).events_open == 0; });
  const std::lock_guard lock(nic().mutex());
  std::erase(of(cq->context).on->queues(), &of(cq));
  of(cq->context).events.drop([&](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq;
  });
  delete &of(cq);
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** own) {
  if (!static_cast<Channel*>(channel)->events.pop(cq, [](ibv_cq* one) { ++of(one).events_open; })) {
    return -1;
  }
  *own = (*cq)->cq_context;
  return 0;
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned count) { of(cq).events_open -= count; }

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  const ibv_qp_cap& cap = attributes->cap;
  const bool type = attributes->qp_type == IBV_QPT_RC || attributes->qp_type == IBV_QPT_UD;
  if (!type || cap.max_inline_data > settings().max_inline || cap.max_send_sge > pieces_max ||
      cap.max_send_wr > settings().max_qp_wr || cap.max_recv_wr > settings().max_qp_wr) {
    return refuse<ibv_qp>(EINVAL);
  }
  if (const Verdict verdict = command(domain->context, settings().create_qp); verdict.error != 0) {
    return refuse<ibv_qp>(verdict.error);
  }
  const std::lock_guard lock(nic().mutex());
  Context& context = of(domain->context);
  if (context.on->pair_count >= settings().max_qp) {
    return refuse<ibv_qp>(ENOMEM);
  }
  auto* pair = new Pair(nic(), context, *attributes);
  pair->pd = domain;
  pair->qp_num = nic().new_pair_number();
  pair->ece = {0x15b3, ece_of(settings().ece), 0};
  ++context.on->pair_count;
  ++of(domain).users;
  ++of(pair->send_cq).users;
  ++of(pair->recv_cq).users;
  nic().add(pair);
  return pair;
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  const bool ends = (mask & IBV_QP_STATE) != 0 &&
                    (attributes->qp_state == IBV_QPS_ERR || attributes->qp_state == IBV_QPS_RESET);
  const Verdict verdict =
      command(qp->context, settings().modify_qp, ends ? Command::ends : Command::other);
  if (!verdict.carried_out) {
    return answer_only(qp, verdict);
  }
  const std::lock_guard lock(nic().mutex());
  return of(qp).modify(*attributes, mask);
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int, ibv_qp_init_attr* init) {
  const Verdict verdict = command(qp->context, settings().query);
  if (verdict.error != 0) {
    return verdict.error;
  }
  const std::lock_guard lock(nic().mutex());
  *attributes = {};
  attributes->qp_state = qp->state;
  attributes->cur_qp_state = qp->state;
  attributes->dest_qp_num = of(qp).route().peer;
  attributes->ah_attr = of(qp).route().way;
  attributes->pkey_index = of(qp).route().pkey_index;
  attributes->cap = of(qp).limits();
  if (init != nullptr) {
    *init = {};
    init->cap = of(qp).limits();
    init->qp_type = qp->qp_type;
  }
  return 0;
}

int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  if (settings().ece == 0) {
    return EOPNOTSUPP;
  }
  *ece = of(qp).ece;
  return 0;
}

int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  if (settings().ece == 0) {
    return EOPNOTSUPP;
  }
  if (ece->vendor_id != of(qp).ece.vendor_id || ece->comp_mask != 0) {
    return EINVAL;
  }
  of(qp).ece.options = ece->options & ece_of(settings().ece);
  return 0;
}

int ibv_destroy_qp(ibv_qp* qp) {
  const Verdict verdict = command(qp->context, settings().destroy_qp, Command::ends);
  if (!verdict.carried_out) {
    return answer_only(qp, verdict);
  }
  Pair& pair = of(qp);
  {
    const std::lock_guard lock(nic().mutex());
    pair.stop(IBV_QPS_RESET);
    nic().remove(&pair);
    pair.owner().events.drop([&](const ibv_async_event& event) {
      return is_of_pair(event) && event.element.qp == &pair;
    });
  }
  await_acknowledgements("a queue pair", [&] { return pair.events_open == 0; });
  const std::lock_guard lock(nic().mutex());
  --pair.owner().on->pair_count;
  --of(pair.pd).users;
  --of(pair.send_cq).users;
  --of(pair.recv_cq).users;
  delete &pair;
  return 0;
}

ibv_ah* ibv_create_ah(ibv_pd* domain, ibv_ah_attr* route) {
  const Verdict verdict = command(domain->context, settings().create_ah);
  const int refused = of(domain->context).on->refuse(*route);
  if (verdict.error != 0 || refused != 0) {
    return refuse<ibv_ah>(verdict.error != 0 ? verdict.error : refused);
  }
  auto* handle = new Handle{};
  handle->context = domain->context;
  handle->pd = domain;
  handle->route = *route;
  ++of(domain).users;
  return handle;
}

int ibv_destroy_ah(ibv_ah* base) {
  auto* handle = static_cast<Handle*>(base);
  --of(handle->pd).users;
  delete handle;
  return 0;
}

}  // extern "C"
