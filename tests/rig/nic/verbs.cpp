// libibverbs.so.1 over the emulated NICs: devices, their ports and events.
#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/rig/nic/nic.h"

// The header has macros and inline functions in their place.
#undef ibv_query_port
#undef ibv_get_device_list

namespace nccl_ha::emulated {
namespace {

int poll_cq(ibv_cq* cq, int room, ibv_wc* out) { return static_cast<Queue*>(cq)->poll(room, out); }

int req_notify_cq(ibv_cq* cq, int) {
  static_cast<Queue*>(cq)->arm();
  return 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** bad) {
  const std::lock_guard lock(Nic::instance().mutex());
  return of(qp).post_send(requests, bad);
}

int post_recv(ibv_qp* qp, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  const std::lock_guard lock(Nic::instance().mutex());
  return of(qp).post_receive(requests, bad);
}

/// A question to the firmware, or to a driver that knows the answer.
int ask(const Context& context) {
  if (context.on->settings().driver_answers) {
    const bool opened_so = context.on->state().generation.load() == context.generation;
    return context.on->present() && opened_so ? 0 : EIO;  // uverbs does not even ask the driver
  }
  return context.on->firmware()
      .command(Command::other, context.on->settings().query, context.generation)
      .error;
}

const char* const event_names[] = {
    "CQ error",
    "local work queue catastrophic error",
    "invalid request local work queue error",
    "local access violation work queue error",
    "communication established",
    "send queue drained",
    "path migrated",
    "path migration request error",
    "local catastrophic error",
    "port active",
    "port error",
    "LID change",
    "P_Key change",
    "SM change",
    "SRQ catastrophic error",
    "SRQ limit reached",
    "last WQE reached",
    "client reregistration",
    "GID table change",
};
const char* const status_names[] = {
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory management operation error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
};

}  // namespace
}  // namespace nccl_ha::emulated

using namespace nccl_ha::emulated;

extern "C" {

int ibv_fork_init() { return 0; }

ibv_device** ibv_get_device_list(int* count) {
  const auto& devices = Nic::instance().devices();
  auto** list = new ibv_device*[devices.size() + 1]();
  int found = 0;
  for (const auto& device : devices) {
    if (device->present()) {
      list[found++] = device.get();
    }
  }
  if (count != nullptr) {
    *count = found;
  }
  return list;
}

void ibv_free_device_list(ibv_device** list) { delete[] list; }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }

__be64 ibv_get_device_guid(ibv_device* device) {
  ibv_device_attr attributes;
  static_cast<Device*>(device)->describe(&attributes);
  return attributes.node_guid;
}

ibv_context* ibv_open_device(ibv_device* base) {
  auto* device = static_cast<Device*>(base);
  if (!device->present()) {
    errno = ENODEV;
    return nullptr;
  }
  auto* context = new Context{};
  context->device = device;
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = req_notify_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->cmd_fd = -1;
  context->async_fd = context->events.fd();
  context->num_comp_vectors = 8;
  context->on = device;
  context->generation = device->state().generation.load();
  const std::lock_guard lock(Nic::instance().mutex());
  device->contexts().push_back(context);
  return context;
}

int ibv_close_device(ibv_context* base) {
  Context& context = of(base);
  {
    const std::lock_guard lock(Nic::instance().mutex());
    std::erase(context.on->contexts(), &context);
  }
  delete &context;
  return 0;
}

int ibv_query_device(ibv_context* base, ibv_device_attr* attributes) {
  of(base).on->describe(attributes);
  return ask(of(base));
}

int ibv_query_port(ibv_context* base, uint8_t port, _compat_ibv_port_attr* out) {
  Context& context = of(base);
  if (port == 0 || port > context.on->settings().ports) {
    return EINVAL;
  }
  context.on->describe(port, reinterpret_cast<ibv_port_attr*>(out));
  return ask(context);
}

int ibv_query_gid(ibv_context* base, uint8_t port, int index, ibv_gid* gid) {
  ibv_gid_entry entry{};
  if (index < 0 || !of(base).on->gid(port, static_cast<uint32_t>(index), &entry)) {
    *gid = {};  // an empty entry of the table
    return 0;
  }
  *gid = entry.gid;
  return 0;
}

int ibv_query_pkey(ibv_context*, uint8_t, int, __be16* key) {
  *key = 0xffff;
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* base, ibv_gid_entry* entries, size_t room, uint32_t,
                             size_t) {
  const Device& device = *of(base).on;
  size_t count = 0;
  for (unsigned port = 1; port <= device.settings().ports; ++port) {
    for (uint32_t index = 0; index < device.gid_count(); ++index) {
      if (count == room) {
        return -EINVAL;
      }
      device.gid(port, index, &entries[count++]);
    }
  }
  return static_cast<ssize_t>(count);
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  const bool taken = of(context).events.pop(event, [](const ibv_async_event& one) {
    if (is_of_pair(one)) {
      ++of(one.element.qp).events_open;
    }
  });
  return taken ? 0 : -1;
}

void ibv_ack_async_event(ibv_async_event* event) {
  if (is_of_pair(*event)) {
    --of(event->element.qp).events_open;
  }
}

/// For what stands for sysfs: whether the kernel has that device still, as it was.
unsigned nha_nic_generation(const char* name) {
  for (const auto& device : Nic::instance().devices()) {
    if (std::strcmp(device->name, name) == 0) {
      return device->state().generation.load();
    }
  }
  return 0;
}

unsigned long nha_nic_guid(const char* name) {
  for (const auto& device : Nic::instance().devices()) {
    if (std::strcmp(device->name, name) == 0) {
      ibv_device_attr attributes;
      device->describe(&attributes);
      return be64toh(attributes.node_guid);
    }
  }
  return 0;
}

bool nha_nic_registered(const char* name, unsigned generation) {
  const auto& devices = Nic::instance().devices();
  return std::any_of(devices.begin(), devices.end(), [&](const auto& device) {
    return std::strcmp(device->name, name) == 0 && device->registered(generation);
  });
}

const char* ibv_event_type_str(ibv_event_type type) {
  return static_cast<size_t>(type) < std::size(event_names) ? event_names[type] : "unknown";
}

const char* ibv_wc_status_str(ibv_wc_status status) {
  return static_cast<size_t>(status) < std::size(status_names) ? status_names[status] : "unknown";
}

}  // extern "C"
