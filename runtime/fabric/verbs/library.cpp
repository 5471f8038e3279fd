#include "runtime/fabric/verbs/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <mutex>

namespace nccl_ha::fabric::verbs {
namespace {

// Symbol versions as in libibverbs' own map file: what a release older than the version lacks.
constexpr const char* base_version = "IBVERBS_1.1";

template <class Function>
bool find(void* handle, const char* name, const char* version, Function* out) {
  *out = reinterpret_cast<Function>(dlvsym(handle, name, version));
  return *out != nullptr;
}

Result<Library> open() {
  void* handle = nullptr;
  std::string reason;
  for (const char* file : {"libibverbs.so.1", "libibverbs.so"}) {
    handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) {
      break;
    }
    if (reason.empty()) {
      const char* text = dlerror();
      reason = text == nullptr ? "unknown reason" : text;
    }
  }
  if (handle == nullptr) {
    return fail(Errc::system, fmt::format("RDMA is not available: {} (install libibverbs1 and "
                                          "ibverbs-providers to use it)",
                                          reason));
  }
  Library library;
  const char* missing = nullptr;
  auto need = [&](const char* name, auto* out, const char* version = base_version) {
    if (!find(handle, name, version, out) && missing == nullptr) {
      missing = name;
    }
  };
  need("ibv_get_device_list", &library.device.get_list);
  need("ibv_free_device_list", &library.device.free_list);
  need("ibv_get_device_name", &library.device.get_name);
  need("ibv_open_device", &library.device.open);
  need("ibv_close_device", &library.device.close);
  need("ibv_query_device", &library.device.query);
  need("ibv_query_port", &library.device.query_port);
  need("ibv_query_gid", &library.device.query_gid);
  need("ibv_get_async_event", &library.event.get);
  need("ibv_ack_async_event", &library.event.ack);
  need("ibv_event_type_str", &library.event.type_text);
  need("ibv_wc_status_str", &library.completion.status_text);
  need("ibv_alloc_pd", &library.memory.alloc_domain);
  need("ibv_dealloc_pd", &library.memory.free_domain);
  need("ibv_reg_mr", &library.memory.reg);
  need("ibv_dereg_mr", &library.memory.dereg);
  need("ibv_create_comp_channel", &library.completion.create_channel, "IBVERBS_1.0");
  need("ibv_destroy_comp_channel", &library.completion.destroy_channel, "IBVERBS_1.0");
  need("ibv_create_cq", &library.completion.create_queue);
  need("ibv_destroy_cq", &library.completion.destroy_queue);
  need("ibv_get_cq_event", &library.completion.get_event);
  need("ibv_ack_cq_events", &library.completion.ack_events);
  need("ibv_create_qp", &library.queue_pair.create);
  need("ibv_modify_qp", &library.queue_pair.modify);
  need("ibv_destroy_qp", &library.queue_pair.destroy);
  need("ibv_create_ah", &library.address_handle.create);
  need("ibv_destroy_ah", &library.address_handle.destroy);
  int (*fork_init)() = nullptr;
  need("ibv_fork_init", &fork_init);
  if (missing != nullptr) {
    dlclose(handle);
    return fail(Errc::system, fmt::format("RDMA is not available: the installed libibverbs has no "
                                          "{}; it is too old or damaged",
                                          missing));
  }
  static_cast<void>(find(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8", &library.memory.reg_iova2));
  static_cast<void>(find(handle, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", &library.memory.reg_dmabuf));
  static_cast<void>(
      find(handle, "_ibv_query_gid_table", "IBVERBS_1.11", &library.device.query_gid_table));
  static_cast<void>(find(handle, "ibv_query_ece", "IBVERBS_1.10", &library.queue_pair.query_ece));
  static_cast<void>(find(handle, "ibv_set_ece", "IBVERBS_1.10", &library.queue_pair.set_ece));
  // Registered memory stays right in the parent when the process forks (NCCL's users do).
  static_cast<void>(fork_init());
  return library;
}

}  // namespace

Result<const Library*> Library::load() {
  static constinit std::mutex mutex;
  static constinit Library loaded;
  static constinit bool ready = false;
  std::lock_guard lock(mutex);
  if (!ready) {
    auto opened = open();
    if (!opened) {
      return opened.error();
    }
    loaded = *opened;
    ready = true;
  }
  return &loaded;
}

}  // namespace nccl_ha::fabric::verbs
