#include "runtime/fabric/verbs/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <mutex>

#include "runtime/base/check.h"
#include "runtime/base/data_turn.h"
#include "runtime/base/log.h"

namespace nccl_ha::fabric::verbs {
namespace {

// Symbol versions as in libibverbs' own map file: what a release older than the version lacks.
constexpr const char* base_version = "IBVERBS_1.1";

template <class Function>
bool find(void* handle, const char* name, const char* version, Function* out) {
  *out = reinterpret_cast<Function>(dlvsym(handle, name, version));
  return *out != nullptr;
}

/// As it was found.
constinit Library as_found;

template <auto group, auto call>
constinit const char* name_of = nullptr;

void check_may_wait(const char* verb) {
  if (DataTurn::is_here()) {
    NHA_DASSERT(false, "a control verb on a progress thread");
    NHA_LOG_WARN_LIMITED("{} on a progress thread, where data waits for it: please report this",
                         verb);
  }
}

/// From now on that call is made where nobody's data waits for it, or reported.
template <auto group, auto call, class Return, class... Arguments>
void watch(Library& library, const char* name, Return (*known)(Arguments...)) {
  if (known == nullptr) {
    return;
  }
  name_of<group, call> = name;
  library.*group.*call = [](Arguments... arguments) -> Return {
    check_may_wait(name_of<group, call>);
    return (as_found.*group.*call)(arguments...);
  };
}

template <auto group, auto call>
void watch(Library& library, const char* name) {
  watch<group, call>(library, name, library.*group.*call);
}

/// Those that ask the firmware, or wait in the kernel.
void watch_control_verbs(Library& library) {
  constexpr auto device = &Library::device;
  constexpr auto memory = &Library::memory;
  constexpr auto completion = &Library::completion;
  constexpr auto pair = &Library::queue_pair;
  constexpr auto handle = &Library::address_handle;
  watch<device, &DeviceCalls::query_port>(library, "ibv_query_port");
  watch<memory, &MemoryCalls::alloc_domain>(library, "ibv_alloc_pd");
  watch<memory, &MemoryCalls::free_domain>(library, "ibv_dealloc_pd");
  watch<memory, &MemoryCalls::reg>(library, "ibv_reg_mr");
  watch<memory, &MemoryCalls::reg_iova2>(library, "ibv_reg_mr_iova2");
  watch<memory, &MemoryCalls::reg_dmabuf>(library, "ibv_reg_dmabuf_mr");
  watch<memory, &MemoryCalls::dereg>(library, "ibv_dereg_mr");
  watch<completion, &CompletionCalls::create_queue>(library, "ibv_create_cq");
  watch<completion, &CompletionCalls::destroy_queue>(library, "ibv_destroy_cq");
  watch<pair, &QueuePairCalls::create>(library, "ibv_create_qp");
  watch<pair, &QueuePairCalls::modify>(library, "ibv_modify_qp");
  watch<pair, &QueuePairCalls::destroy>(library, "ibv_destroy_qp");
  watch<handle, &AddressHandleCalls::create>(library, "ibv_create_ah");
  watch<handle, &AddressHandleCalls::destroy>(library, "ibv_destroy_ah");
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
    as_found = *opened;
    loaded = as_found;
    watch_control_verbs(loaded);
    ready = true;
  }
  return &loaded;
}

}  // namespace nccl_ha::fabric::verbs
