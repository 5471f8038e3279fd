// libibverbs, opened at run time: the plugin also loads where rdma-core is not installed.
//
// Only what has a symbol of its own is listed; posting and polling go through the function pointers
// that a provider leaves in its objects (the inline functions of verbs.h).
#pragma once

#include <infiniband/verbs.h>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace nccl_ha::fabric::verbs {

struct DeviceCalls {
  ibv_device** (*get_list)(int*) = nullptr;
  void (*free_list)(ibv_device**) = nullptr;
  const char* (*get_name)(ibv_device*) = nullptr;
  ibv_context* (*open)(ibv_device*) = nullptr;
  int (*close)(ibv_context*) = nullptr;
  int (*query)(ibv_context*, ibv_device_attr*) = nullptr;
  int (*query_port)(ibv_context*, uint8_t, ibv_port_attr*) = nullptr;
  int (*query_gid)(ibv_context*, uint8_t, int, ibv_gid*) = nullptr;
  /// Newer releases only; null in older ones.
  ssize_t (*query_gid_table)(ibv_context*, ibv_gid_entry*, size_t, uint32_t, size_t) = nullptr;
};

/// Asynchronous events of a device.
struct EventCalls {
  int (*get)(ibv_context*, ibv_async_event*) = nullptr;
  void (*ack)(ibv_async_event*) = nullptr;
  const char* (*type_text)(ibv_event_type) = nullptr;
};

/// Protection domains and registered memory.
struct MemoryCalls {
  ibv_pd* (*alloc_domain)(ibv_context*) = nullptr;
  int (*free_domain)(ibv_pd*) = nullptr;
  ibv_mr* (*reg)(ibv_pd*, void*, size_t, int) = nullptr;
  int (*dereg)(ibv_mr*) = nullptr;
  // Newer releases only; null in older ones.
  ibv_mr* (*reg_iova2)(ibv_pd*, void*, size_t, uint64_t, unsigned) = nullptr;
  ibv_mr* (*reg_dmabuf)(ibv_pd*, uint64_t, size_t, uint64_t, int, int) = nullptr;
};

/// Completion channels and queues.
struct CompletionCalls {
  ibv_comp_channel* (*create_channel)(ibv_context*) = nullptr;
  int (*destroy_channel)(ibv_comp_channel*) = nullptr;
  ibv_cq* (*create_queue)(ibv_context*, int, void*, ibv_comp_channel*, int) = nullptr;
  int (*destroy_queue)(ibv_cq*) = nullptr;
  int (*get_event)(ibv_comp_channel*, ibv_cq**, void**) = nullptr;
  void (*ack_events)(ibv_cq*, unsigned) = nullptr;
  const char* (*status_text)(ibv_wc_status) = nullptr;
};

struct QueuePairCalls {
  ibv_qp* (*create)(ibv_pd*, ibv_qp_init_attr*) = nullptr;
  int (*modify)(ibv_qp*, ibv_qp_attr*, int) = nullptr;
  int (*destroy)(ibv_qp*) = nullptr;
  // Newer releases only; null in older ones.
  int (*query_ece)(ibv_qp*, ibv_ece*) = nullptr;
  int (*set_ece)(ibv_qp*, ibv_ece*) = nullptr;
};

/// Address handles: ways to a port.
struct AddressHandleCalls {
  ibv_ah* (*create)(ibv_pd*, ibv_ah_attr*) = nullptr;
  int (*destroy)(ibv_ah*) = nullptr;
};

/// By the object that a call is about.
struct Library {
  /// Of a simulation, where no call blocks, and what GPU drivers this host has means nothing: how
  /// long calls would have blocked, which whoever makes them takes out.  Null: real devices.
  Duration& (*waited)(ibv_context*) = nullptr;
  DeviceCalls device;
  EventCalls event;
  MemoryCalls memory;
  CompletionCalls completion;
  QueuePairCalls queue_pair;
  AddressHandleCalls address_handle;

  /// Any thread.  Loads once; the library stays loaded, because its providers do not like to leave.
  /// The error says what is missing and that datagrams work without it.
  static Result<const Library*> load();
};

}  // namespace nccl_ha::fabric::verbs
