// The exported tables.  Each version is a thin translation onto plugin/net.h; what differs between
// versions is spelled out here and nowhere else.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "plugin/edge.h"
#include "plugin/net.h"

namespace nccl_ha::plugin {
namespace {

using namespace abi;

constexpr const char* plugin_name = "HA";

[[gnu::cold, gnu::noinline]] bool complain_of_null(const char* call) {
  NHA_LOG_ERROR("{}: called with a null pointer to write to", call);
  return true;
}

inline bool refuse_null(const void* pointer, const char* call) {
  return pointer == nullptr && complain_of_null(call);
}

bool refuse_size(int size, const char* call) {
  if (size < 0) {
    NHA_LOG_ERROR("{}: called with the negative size {}", call, size);
  }
  return size < 0;
}

// --- calls without a context (v6 to v10)

NcclResult init_v6(Logger logger) { return net_init(nullptr, 0, -1, logger, nullptr); }
NcclResult init_v10(Logger logger, ProfilerCallback profiler) {
  return net_init(nullptr, 0, -1, logger, profiler);
}

NcclResult devices(int* ndev) {
  return refuse_null(ndev, "devices") ? NcclResult::invalid_argument : net_devices(ndev);
}

/// The fields that every version has, and those that this version has.
template <class Properties>
NcclResult get_properties(int dev, Properties* out) {
  if (refuse_null(out, "getProperties")) {
    return NcclResult::invalid_argument;
  }
  DeviceProperties all{};
  const NcclResult result = net_properties(dev, &all);
  if (result != NcclResult::success) {
    return result;
  }
  *out = {};
  out->name = const_cast<char*>(all.name);
  out->pci_path = const_cast<char*>(all.pci_path);
  out->guid = all.guid;
  out->ptr_support = all.ptr_support;
  out->speed = all.speed_mbps;
  out->port = all.port;
  out->latency = all.latency_us;
  out->max_comms = all.max_comms;
  out->max_recvs = all.max_recvs;
  if constexpr (requires { out->net_device_type; }) {
    out->net_device_type = DeviceType::host;
    out->net_device_version = 0;
  }
  if constexpr (requires { out->reg_is_global; }) {
    out->reg_is_global = all.reg_is_global;
  }
  if constexpr (requires { out->vprops; }) {
    out->force_flush = all.force_flush;
    out->vprops.ndevs = all.member_count;
    std::copy_n(all.members.begin(), all.member_count, out->vprops.devs);
    out->max_p2p_bytes = all.max_p2p_bytes;
    out->max_coll_bytes = all.max_coll_bytes;
  }
  if constexpr (requires { out->max_multi_request; }) {
    out->max_multi_request = all.max_multi_request;
  }
  if constexpr (requires { out->rail_id; }) {
    out->rail_id = all.rail_id;
    out->plane_id = all.plane_id;
  }
  return NcclResult::success;
}

template <class VDeviceProps>
NcclResult make_vdevice(int* dev, VDeviceProps* props) {
  return refuse_null(dev, "makeVDevice") || refuse_null(props, "makeVDevice")
             ? NcclResult::invalid_argument
             : net_make_vdevice(
                   dev, props->devs,
                   props->ndevs > static_cast<int>(std::size(props->devs)) ? -1 : props->ndevs);
}

NcclResult listen_context(void* ctx, int dev, void* handle, void** comm) {
  if (refuse_null(handle, "listen") || refuse_null(comm, "listen")) {
    return NcclResult::invalid_argument;
  }
  return net_listen(ctx, dev, handle, comm);
}
NcclResult listen_plain(int dev, void* handle, void** comm) {
  return listen_context(nullptr, dev, handle, comm);
}

NcclResult connect_any(void* ctx, int dev, int traffic_class, void* handle, void** comm) {
  if (refuse_null(handle, "connect") || refuse_null(comm, "connect")) {
    return NcclResult::invalid_argument;
  }
  return net_connect(ctx, dev, traffic_class, handle, comm);
}
NcclResult connect_v6(int dev, void* handle, void** comm) {
  return connect_any(nullptr, dev, -1, handle, comm);
}
// The device handle stays as NCCL left it: there is no offload, and the pointer may be null.
NcclResult connect_v7(int dev, void* handle, void** comm, DeviceHandle**) {
  return connect_any(nullptr, dev, -1, handle, comm);
}
NcclResult connect_v10(int dev, CommConfig* config, void* handle, void** comm, DeviceHandle**) {
  return connect_any(nullptr, dev, config == nullptr ? -1 : config->traffic_class, handle, comm);
}
NcclResult connect_v11(void* ctx, int dev, void* handle, void** comm, DeviceHandle**) {
  return connect_any(ctx, dev, -1, handle, comm);
}

NcclResult accept_v6(void* listen_comm, void** comm) {
  return refuse_null(comm, "accept") ? NcclResult::invalid_argument : net_accept(listen_comm, comm);
}
NcclResult accept_v7(void* listen_comm, void** comm, DeviceHandle**) {
  return accept_v6(listen_comm, comm);
}

// --- memory

NcclResult reg_mr_size(void* comm, void* data, size_t size, int type, void** mhandle) {
  return refuse_null(mhandle, "regMr") ? NcclResult::invalid_argument
                                       : net_reg_mr(comm, data, size, type, mhandle);
}
NcclResult reg_mr_int(void* comm, void* data, int size, int type, void** mhandle) {
  if (refuse_size(size, "regMr")) {
    return NcclResult::invalid_argument;
  }
  return reg_mr_size(comm, data, static_cast<size_t>(size), type, mhandle);
}
NcclResult reg_mr_dmabuf(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                         void** mhandle) {
  return refuse_null(mhandle, "regMrDmaBuf")
             ? NcclResult::invalid_argument
             : net_reg_mr_dmabuf(comm, data, size, type, offset, fd, mhandle);
}
NcclResult dereg_mr(void* comm, void* mhandle) { return net_dereg_mr(comm, mhandle); }

// --- transfers

NcclResult isend_int(void* comm, void* data, int size, int tag, void* mhandle, void** request) {
  if (refuse_null(request, "isend") || refuse_size(size, "isend")) {
    return NcclResult::invalid_argument;
  }
  return net_isend(comm, data, static_cast<size_t>(size), tag, mhandle, nullptr, request);
}
NcclResult isend_size(void* comm, void* data, size_t size, int tag, void* mhandle, void** request) {
  return refuse_null(request, "isend")
             ? NcclResult::invalid_argument
             : net_isend(comm, data, size, tag, mhandle, nullptr, request);
}
[[gnu::hot]] NcclResult isend_profiled(void* comm, void* data, size_t size, int tag, void* mhandle,
                                       void* phandle, void** request) {
  return refuse_null(request, "isend")
             ? NcclResult::invalid_argument
             : net_isend(comm, data, size, tag, mhandle, phandle, request);
}

bool refuse_receive(int n, const void* data, const void* sizes, const void* tags,
                    const void* mhandles, const void* request) {
  if (n < 1 || n > 8 || data == nullptr || sizes == nullptr || tags == nullptr ||
      mhandles == nullptr || request == nullptr) {
    NHA_LOG_ERROR("irecv: called with {} buffers (1 to 8 are possible) or a null array", n);
    return true;
  }
  return false;
}

/// NCCL tells from v9 on that a receive is polled, unless it was told not to, and for a receive
/// that is alone only: the parts of a group may be polled whenever its low-latency buffers are
/// used.
bool hint_is_reliable() {
  static const bool reliable = [] {
    const char* value = std::getenv("NCCL_NET_OPTIONAL_RECV_COMPLETION");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return reliable;
}

NcclResult irecv_int(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                     void** request) {
  if (refuse_receive(n, data, sizes, tags, mhandles, request)) {
    return NcclResult::invalid_argument;
  }
  size_t wide[8];
  for (int i = 0; i < n; ++i) {
    if (refuse_size(sizes[i], "irecv")) {
      return NcclResult::invalid_argument;
    }
    wide[i] = static_cast<size_t>(sizes[i]);
  }
  return net_irecv(comm, n, data, wide, tags, mhandles, nullptr, true, request);
}
[[gnu::hot]] NcclResult irecv_profiled(void* comm, int n, void** data, size_t* sizes, int* tags,
                                       void** mhandles, void** phandles, void** request) {
  if (refuse_receive(n, data, sizes, tags, mhandles, request)) {
    return NcclResult::invalid_argument;
  }
  const bool hinted = reinterpret_cast<uintptr_t>(*request) == optional_receive_completion;
  return net_irecv(comm, n, data, sizes, tags, mhandles, phandles,
                   hinted || n > 1 || !hint_is_reliable(), request);
}
NcclResult irecv_size(void* comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                      void** request) {
  return irecv_profiled(comm, n, data, sizes, tags, mhandles, nullptr, request);
}

NcclResult iflush(void* comm, int n, void** data, int* sizes, void** mhandles, void** request) {
  return refuse_null(request, "iflush") ? NcclResult::invalid_argument
                                        : net_iflush(comm, n, data, sizes, mhandles, request);
}
[[gnu::hot]] NcclResult test(void* request, int* done, int* sizes) {
  if (done == nullptr) [[unlikely]] {
    return NcclResult::invalid_argument;
  }
  return net_test(request, done, sizes);
}

NcclResult close_send(void* comm) { return net_close_send(comm); }
NcclResult close_recv(void* comm) { return net_close_recv(comm); }
NcclResult close_listen(void* comm) { return net_close_listen(comm); }

// --- with a context (v11, v12)

NcclResult init_v11(void** ctx, uint64_t comm_id, CommConfig* config, Logger logger,
                    ProfilerCallback profiler) {
  if (refuse_null(ctx, "init")) {
    return NcclResult::invalid_argument;
  }
  // `config` is NCCL's local variable: what is needed of it is copied here.
  return net_init(ctx, comm_id, config == nullptr ? -1 : config->traffic_class, logger, profiler);
}
NcclResult finalize(void* ctx) { return net_finalize(ctx); }
NcclResult set_net_attr(void* ctx, NetAttr* attr) { return net_set_attr(ctx, attr); }

}  // namespace
}  // namespace nccl_ha::plugin

// Named members would need the declaration order anyway; NCCL's order is asserted in nccl_abi.h.
// getDeviceMr and irecvConsumed are for device offload: absent.
#define NHA_EXPORT extern "C" __attribute__((visibility("default")))
namespace nccl_ha::plugin {

NHA_EXPORT const abi::NetV6 ncclNetPlugin_v6;
const abi::NetV6 ncclNetPlugin_v6 = {
    .name = plugin_name,
    .init = init_v6,
    .devices = devices,
    .get_properties = get_properties<PropertiesV6>,
    .listen = listen_plain,
    .connect = connect_v6,
    .accept = accept_v6,
    .reg_mr = reg_mr_int,
    .reg_mr_dmabuf = reg_mr_dmabuf,
    .dereg_mr = dereg_mr,
    .isend = isend_int,
    .irecv = irecv_int,
    .iflush = iflush,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
};

NHA_EXPORT const abi::NetV7 ncclNetPlugin_v7;
const abi::NetV7 ncclNetPlugin_v7 = {
    .name = plugin_name,
    .init = init_v6,
    .devices = devices,
    .get_properties = get_properties<PropertiesV7>,
    .listen = listen_plain,
    .connect = connect_v7,
    .accept = accept_v7,
    .reg_mr = reg_mr_int,
    .reg_mr_dmabuf = reg_mr_dmabuf,
    .dereg_mr = dereg_mr,
    .isend = isend_int,
    .irecv = irecv_int,
    .iflush = iflush,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};

NHA_EXPORT const abi::NetV8 ncclNetPlugin_v8;
const abi::NetV8 ncclNetPlugin_v8 = {
    .name = plugin_name,
    .init = init_v6,
    .devices = devices,
    .get_properties = get_properties<PropertiesV8>,
    .listen = listen_plain,
    .connect = connect_v7,
    .accept = accept_v7,
    .reg_mr = reg_mr_size,
    .reg_mr_dmabuf = reg_mr_dmabuf,
    .dereg_mr = dereg_mr,
    .isend = isend_int,
    .irecv = irecv_int,
    .iflush = iflush,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};

NHA_EXPORT const abi::NetV9 ncclNetPlugin_v9;
const abi::NetV9 ncclNetPlugin_v9 = {
    .name = plugin_name,
    .init = init_v6,
    .devices = devices,
    .get_properties = get_properties<PropertiesV9>,
    .listen = listen_plain,
    .connect = connect_v7,
    .accept = accept_v7,
    .reg_mr = reg_mr_size,
    .reg_mr_dmabuf = reg_mr_dmabuf,
    .dereg_mr = dereg_mr,
    .isend = isend_size,
    .irecv = irecv_size,
    .iflush = iflush,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_vdevice = make_vdevice<VDevicePropsV9>,
};

NHA_EXPORT const abi::NetV10 ncclNetPlugin_v10;
const abi::NetV10 ncclNetPlugin_v10 = {
    .name = plugin_name,
    .init = init_v10,
    .devices = devices,
    .get_properties = get_properties<PropertiesV10>,
    .listen = listen_plain,
    .connect = connect_v10,
    .accept = accept_v7,
    .reg_mr = reg_mr_size,
    .reg_mr_dmabuf = reg_mr_dmabuf,
    .dereg_mr = dereg_mr,
    .isend = isend_profiled,
    .irecv = irecv_profiled,
    .iflush = iflush,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_vdevice = make_vdevice<VDevicePropsV9>,
};

namespace {

/// v11 and v12 have the same shape.
template <class Table, class Properties, class VDeviceProps>
constexpr Table table_with_context() {
  return {
      .name = plugin_name,
      .init = init_v11,
      .devices = devices,
      .get_properties = get_properties<Properties>,
      .listen = listen_context,
      .connect = connect_v11,
      .accept = accept_v7,
      .reg_mr = reg_mr_size,
      .reg_mr_dmabuf = reg_mr_dmabuf,
      .dereg_mr = dereg_mr,
      .isend = isend_profiled,
      .irecv = irecv_profiled,
      .iflush = iflush,
      .test = test,
      .close_send = close_send,
      .close_recv = close_recv,
      .close_listen = close_listen,
      .get_device_mr = nullptr,
      .irecv_consumed = nullptr,
      .make_vdevice = make_vdevice<VDeviceProps>,
      .finalize = finalize,
      .set_net_attr = set_net_attr,
  };
}

}  // namespace

NHA_EXPORT const abi::NetV11 ncclNetPlugin_v11;
const abi::NetV11 ncclNetPlugin_v11 = table_with_context<NetV11, PropertiesV11, VDevicePropsV9>();

NHA_EXPORT const abi::NetV12 ncclNetPlugin_v12;
const abi::NetV12 ncclNetPlugin_v12 = table_with_context<NetV12, PropertiesV12, VDevicePropsV12>();

}  // namespace nccl_ha::plugin
