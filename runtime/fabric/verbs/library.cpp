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
  need("ibv_get_device_list", &library.get_device_list);
  need("ibv_free_device_list", &library.free_device_list);
  need("ibv_get_device_name", &library.get_device_name);
  need("ibv_open_device", &library.open_device);
  need("ibv_close_device", &library.close_device);
  need("ibv_query_device", &library.query_device);
  need("ibv_query_port", &library.query_port);
  need("ibv_query_gid", &library.query_gid);
  need("ibv_get_async_event", &library.get_async_event);
  need("ibv_ack_async_event", &library.ack_async_event);
  need("ibv_event_type_str", &library.event_type_str);
  need("ibv_wc_status_str", &library.wc_status_str);
  need("ibv_alloc_pd", &library.alloc_pd);
  need("ibv_dealloc_pd", &library.dealloc_pd);
  need("ibv_reg_mr", &library.reg_mr_plain);
  need("ibv_dereg_mr", &library.dereg_mr);
  need("ibv_create_comp_channel", &library.create_comp_channel, "IBVERBS_1.0");
  need("ibv_destroy_comp_channel", &library.destroy_comp_channel, "IBVERBS_1.0");
  need("ibv_create_cq", &library.create_cq);
  need("ibv_destroy_cq", &library.destroy_cq);
  need("ibv_get_cq_event", &library.get_cq_event);
  need("ibv_ack_cq_events", &library.ack_cq_events);
  need("ibv_create_qp", &library.create_qp);
  need("ibv_modify_qp", &library.modify_qp);
  need("ibv_destroy_qp", &library.destroy_qp);
  need("ibv_create_ah", &library.create_ah);
  need("ibv_destroy_ah", &library.destroy_ah);
  need("ibv_fork_init", &library.fork_init);
  if (missing != nullptr) {
    dlclose(handle);
    return fail(Errc::system, fmt::format("RDMA is not available: the installed libibverbs has no "
                                          "{}; it is too old or damaged",
                                          missing));
  }
  static_cast<void>(find(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8", &library.reg_mr_iova2));
  static_cast<void>(find(handle, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", &library.reg_dmabuf_mr));
  static_cast<void>(find(handle, "_ibv_query_gid_table", "IBVERBS_1.11", &library.query_gid_table));
  static_cast<void>(find(handle, "ibv_query_ece", "IBVERBS_1.10", &library.query_ece));
  static_cast<void>(find(handle, "ibv_set_ece", "IBVERBS_1.10", &library.set_ece));
  // Registered memory stays right in the parent when the process forks (NCCL's users do).
  static_cast<void>(library.fork_init());
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
