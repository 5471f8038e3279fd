// NCCL's network-plugin ABI, v6 to v12, declared by us from the facts of its layout.
//
// Sizes and offsets are those of x86-64 and of every LP64 platform with natural alignment; they are
// asserted below against the published ones.  NCCL looks for data symbols ncclNetPlugin_v12 ..
// ncclNetPlugin_v6 and takes the newest it knows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nccl_ha::abi {

inline constexpr size_t handle_max_bytes = 128;
inline constexpr int requests_max = 32;  ///< open requests per connection
inline constexpr int devices_per_nic_v9 = 4;
inline constexpr int devices_per_nic_v12 = 8;
inline constexpr int64_t net_bytes_max = int64_t{1} << 40;

// ptr_support bits; regMr's type is host or cuda.
inline constexpr int ptr_host = 1;
inline constexpr int ptr_cuda = 2;
inline constexpr int ptr_dmabuf = 4;

/// Value of *request on entry to irecv: the reader polls the data itself (LL protocols).
inline constexpr uintptr_t optional_receive_completion = 1;

enum class NcclResult : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum class LogLevel : int { none = 0, version = 1, warn = 2, info = 3, abort = 4, trace = 5 };

using Logger = void (*)(LogLevel level, unsigned long flags, const char* file, int line,
                        const char* format, ...);
/// From v10 on.  A start writes *event, unless nobody wants the event; the others only read it.
using ProfilerCallback = NcclResult (*)(void** event, int type, void* parent, int64_t plugin_id,
                                        void* data);
enum class ProfilerEvent : int { start = 0, stop = 1, update = 2, update_and_stop = 3 };
static_assert(sizeof(ProfilerEvent) == sizeof(int));

enum class DeviceType : int { host = 0, unpack = 1, gin_proxy = 2, gin_gdaki = 3, gin_gpi = 4 };

struct VDevicePropsV9 {
  int ndevs;
  int devs[devices_per_nic_v9];
};
struct VDevicePropsV12 {
  int ndevs;
  int devs[devices_per_nic_v12];
};

struct CommConfig {
  int traffic_class;  ///< -1: undefined
};

struct CommAttr {
  int32_t max_concurrent_peers;
  int32_t min_concurrent_peers;
  int32_t max_flows_per_peer;
  int32_t min_flows_per_peer;
};
struct NetAttr {
  CommAttr send;
  CommAttr recv;
  uint32_t op;
  uint32_t algo;
  uint32_t proto;
};

struct DeviceHandle {
  DeviceType type;
  int version;
  void* handle;
  size_t size;
  int needs_proxy_progress;
};

struct PropertiesV6 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
};
struct PropertiesV7 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  DeviceType net_device_type;
  int net_device_version;
};
struct PropertiesV8 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  DeviceType net_device_type;
  int net_device_version;
};
struct PropertiesV9 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  DeviceType net_device_type;
  int net_device_version;
  VDevicePropsV9 vprops;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
};
using PropertiesV10 = PropertiesV9;
struct PropertiesV11 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  DeviceType net_device_type;
  int net_device_version;
  VDevicePropsV9 vprops;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
  int max_multi_request;
};
struct PropertiesV12 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  DeviceType net_device_type;
  int net_device_version;
  VDevicePropsV12 vprops;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
  int max_multi_request;
  int16_t rail_id;
  int16_t plane_id;
};

struct NetV6 {
  const char* name;
  NcclResult (*init)(Logger);
  NcclResult (*devices)(int*);
  NcclResult (*get_properties)(int, PropertiesV6*);
  NcclResult (*listen)(int, void*, void**);
  NcclResult (*connect)(int, void*, void**);
  NcclResult (*accept)(void*, void**);
  NcclResult (*reg_mr)(void*, void*, int, int, void**);
  NcclResult (*reg_mr_dmabuf)(void*, void*, size_t, int, uint64_t, int, void**);
  NcclResult (*dereg_mr)(void*, void*);
  NcclResult (*isend)(void*, void*, int, int, void*, void**);
  NcclResult (*irecv)(void*, int, void**, int*, int*, void**, void**);
  NcclResult (*iflush)(void*, int, void**, int*, void**, void**);
  NcclResult (*test)(void*, int*, int*);
  NcclResult (*close_send)(void*);
  NcclResult (*close_recv)(void*);
  NcclResult (*close_listen)(void*);
};
struct NetV7 {
  const char* name;
  NcclResult (*init)(Logger);
  NcclResult (*devices)(int*);
  NcclResult (*get_properties)(int, PropertiesV7*);
  NcclResult (*listen)(int, void*, void**);
  NcclResult (*connect)(int, void*, void**, DeviceHandle**);
  NcclResult (*accept)(void*, void**, DeviceHandle**);
  NcclResult (*reg_mr)(void*, void*, int, int, void**);
  NcclResult (*reg_mr_dmabuf)(void*, void*, size_t, int, uint64_t, int, void**);
  NcclResult (*dereg_mr)(void*, void*);
  NcclResult (*isend)(void*, void*, int, int, void*, void**);
  NcclResult (*irecv)(void*, int, void**, int*, int*, void**, void**);
  NcclResult (*iflush)(void*, int, void**, int*, void**, void**);
  NcclResult (*test)(void*, int*, int*);
  NcclResult (*close_send)(void*);
  NcclResult (*close_recv)(void*);
  NcclResult (*close_listen)(void*);
  NcclResult (*get_device_mr)(void*, void*, void**);
  NcclResult (*irecv_consumed)(void*, int, void*);
};
struct NetV8 {
  const char* name;
  NcclResult (*init)(Logger);
  NcclResult (*devices)(int*);
  NcclResult (*get_properties)(int, PropertiesV8*);
  NcclResult (*listen)(int, void*, void**);
  NcclResult (*connect)(int, void*, void**, DeviceHandle**);
  NcclResult (*accept)(void*, void**, DeviceHandle**);
  NcclResult (*reg_mr)(void*, void*, size_t, int, void**);
  NcclResult (*reg_mr_dmabuf)(void*, void*, size_t, int, uint64_t, int, void**);
  NcclResult (*dereg_mr)(void*, void*);
  NcclResult (*isend)(void*, void*, int, int, void*, void**);
  NcclResult (*irecv)(void*, int, void**, int*, int*, void**, void**);
  NcclResult (*iflush)(void*, int, void**, int*, void**, void**);
  NcclResult (*test)(void*, int*, int*);
  NcclResult (*close_send)(void*);
  NcclResult (*close_recv)(void*);
  NcclResult (*close_listen)(void*);
  NcclResult (*get_device_mr)(void*, void*, void**);
  NcclResult (*irecv_consumed)(void*, int, void*);
};
struct NetV9 {
  const char* name;
  NcclResult (*init)(Logger);
  NcclResult (*devices)(int*);
  NcclResult (*get_properties)(int, PropertiesV9*);
  NcclResult (*listen)(int, void*, void**);
  NcclResult (*connect)(int, void*, void**, DeviceHandle**);
  NcclResult (*accept)(void*, void**, DeviceHandle**);
  NcclResult (*reg_mr)(void*, void*, size_t, int, void**);
  NcclResult (*reg_mr_dmabuf)(void*, void*, size_t, int, uint64_t, int, void**);
  NcclResult (*dereg_mr)(void*, void*);
  NcclResult (*isend)(void*, void*, size_t, int, void*, void**);
  NcclResult (*irecv)(void*, int, void**, size_t*, int*, void**, void**);
  NcclResult (*iflush)(void*, int, void**, int*, void**, void**);
  NcclResult (*test)(void*, int*, int*);
  NcclResult (*close_send)(void*);
  NcclResult (*close_recv)(void*);
  NcclResult (*close_listen)(void*);
  NcclResult (*get_device_mr)(void*, void*, void**);
  NcclResult (*irecv_consumed)(void*, int, void*);
  NcclResult (*make_vdevice)(int*, VDevicePropsV9*);
};
struct NetV10 {
  const char* name;
  NcclResult (*init)(Logger, ProfilerCallback);
  NcclResult (*devices)(int*);
  NcclResult (*get_properties)(int, PropertiesV10*);
  NcclResult (*listen)(int, void*, void**);
  NcclResult (*connect)(int, CommConfig*, void*, void**, DeviceHandle**);
  NcclResult (*accept)(void*, void**, DeviceHandle**);
  NcclResult (*reg_mr)(void*, void*, size_t, int, void**);
  NcclResult (*reg_mr_dmabuf)(void*, void*, size_t, int, uint64_t, int, void**);
  NcclResult (*dereg_mr)(void*, void*);
  NcclResult (*isend)(void*, void*, size_t, int, void*, void*, void**);
  NcclResult (*irecv)(void*, int, void**, size_t*, int*, void**, void**, void**);
  NcclResult (*iflush)(void*, int, void**, int*, void**, void**);
  NcclResult (*test)(void*, int*, int*);
  NcclResult (*close_send)(void*);
  NcclResult (*close_recv)(void*);
  NcclResult (*close_listen)(void*);
  NcclResult (*get_device_mr)(void*, void*, void**);
  NcclResult (*irecv_consumed)(void*, int, void*);
  NcclResult (*make_vdevice)(int*, VDevicePropsV9*);
};

/// v11 and v12 differ in two types only.
template <class Properties, class VDeviceProps>
struct NetWithContext {
  const char* name;
  NcclResult (*init)(void**, uint64_t, CommConfig*, Logger, ProfilerCallback);
  NcclResult (*devices)(int*);
  NcclResult (*get_properties)(int, Properties*);
  NcclResult (*listen)(void*, int, void*, void**);
  NcclResult (*connect)(void*, int, void*, void**, DeviceHandle**);
  NcclResult (*accept)(void*, void**, DeviceHandle**);
  NcclResult (*reg_mr)(void*, void*, size_t, int, void**);
  NcclResult (*reg_mr_dmabuf)(void*, void*, size_t, int, uint64_t, int, void**);
  NcclResult (*dereg_mr)(void*, void*);
  NcclResult (*isend)(void*, void*, size_t, int, void*, void*, void**);
  NcclResult (*irecv)(void*, int, void**, size_t*, int*, void**, void**, void**);
  NcclResult (*iflush)(void*, int, void**, int*, void**, void**);
  NcclResult (*test)(void*, int*, int*);
  NcclResult (*close_send)(void*);
  NcclResult (*close_recv)(void*);
  NcclResult (*close_listen)(void*);
  NcclResult (*get_device_mr)(void*, void*, void**);
  NcclResult (*irecv_consumed)(void*, int, void*);
  NcclResult (*make_vdevice)(int*, VDeviceProps*);
  NcclResult (*finalize)(void*);
  NcclResult (*set_net_attr)(void*, NetAttr*);
};
using NetV11 = NetWithContext<PropertiesV11, VDevicePropsV9>;
using NetV12 = NetWithContext<PropertiesV12, VDevicePropsV12>;

#define NHA_AT(type, member, at) \
  static_assert(offsetof(type, member) == (at), #type "::" #member " is misplaced")

static_assert(sizeof(PropertiesV6) == 48 && sizeof(PropertiesV7) == 56 &&
              sizeof(PropertiesV8) == 64 && sizeof(PropertiesV9) == 104 &&
              sizeof(PropertiesV11) == 112 && sizeof(PropertiesV12) == 128);
static_assert(sizeof(VDevicePropsV9) == 20 && sizeof(VDevicePropsV12) == 36 &&
              sizeof(CommConfig) == 4 && sizeof(CommAttr) == 16 && sizeof(NetAttr) == 44 &&
              sizeof(DeviceHandle) == 32 && sizeof(DeviceType) == 4 && sizeof(NcclResult) == 4);
NHA_AT(PropertiesV6, guid, 16);
NHA_AT(PropertiesV6, ptr_support, 24);
NHA_AT(PropertiesV6, speed, 28);
NHA_AT(PropertiesV6, port, 32);
NHA_AT(PropertiesV6, latency, 36);
NHA_AT(PropertiesV6, max_comms, 40);
NHA_AT(PropertiesV6, max_recvs, 44);
NHA_AT(PropertiesV7, speed, 28);
NHA_AT(PropertiesV7, max_recvs, 44);
NHA_AT(PropertiesV7, net_device_type, 48);
NHA_AT(PropertiesV7, net_device_version, 52);
NHA_AT(PropertiesV8, reg_is_global, 28);
NHA_AT(PropertiesV8, speed, 32);
NHA_AT(PropertiesV8, max_recvs, 48);
NHA_AT(PropertiesV8, net_device_type, 52);
NHA_AT(PropertiesV8, net_device_version, 56);
NHA_AT(PropertiesV9, reg_is_global, 28);
NHA_AT(PropertiesV9, force_flush, 32);
NHA_AT(PropertiesV9, speed, 36);
NHA_AT(PropertiesV9, port, 40);
NHA_AT(PropertiesV9, latency, 44);
NHA_AT(PropertiesV9, max_comms, 48);
NHA_AT(PropertiesV9, max_recvs, 52);
NHA_AT(PropertiesV9, net_device_type, 56);
NHA_AT(PropertiesV9, net_device_version, 60);
NHA_AT(PropertiesV9, vprops, 64);
NHA_AT(PropertiesV9, max_p2p_bytes, 88);
NHA_AT(PropertiesV9, max_coll_bytes, 96);
NHA_AT(PropertiesV11, vprops, 64);
NHA_AT(PropertiesV11, max_p2p_bytes, 88);
NHA_AT(PropertiesV11, max_multi_request, 104);
NHA_AT(PropertiesV12, vprops, 64);
NHA_AT(PropertiesV12, max_p2p_bytes, 104);
NHA_AT(PropertiesV12, max_coll_bytes, 112);
NHA_AT(PropertiesV12, max_multi_request, 120);
NHA_AT(PropertiesV12, rail_id, 124);
NHA_AT(PropertiesV12, plane_id, 126);
NHA_AT(NetAttr, recv, 16);
NHA_AT(NetAttr, op, 32);
NHA_AT(NetAttr, proto, 40);
NHA_AT(DeviceHandle, version, 4);
NHA_AT(DeviceHandle, handle, 8);
NHA_AT(DeviceHandle, size, 16);
NHA_AT(DeviceHandle, needs_proxy_progress, 24);

// The members up to close_listen lie alike in every version.
#define NHA_COMMON_TABLE(type)      \
  NHA_AT(type, init, 8);            \
  NHA_AT(type, devices, 16);        \
  NHA_AT(type, get_properties, 24); \
  NHA_AT(type, listen, 32);         \
  NHA_AT(type, connect, 40);        \
  NHA_AT(type, accept, 48);         \
  NHA_AT(type, reg_mr, 56);         \
  NHA_AT(type, reg_mr_dmabuf, 64);  \
  NHA_AT(type, dereg_mr, 72);       \
  NHA_AT(type, isend, 80);          \
  NHA_AT(type, irecv, 88);          \
  NHA_AT(type, iflush, 96);         \
  NHA_AT(type, test, 104);          \
  NHA_AT(type, close_send, 112);    \
  NHA_AT(type, close_recv, 120);    \
  NHA_AT(type, close_listen, 128)
NHA_COMMON_TABLE(NetV6);
NHA_COMMON_TABLE(NetV7);
NHA_COMMON_TABLE(NetV8);
NHA_COMMON_TABLE(NetV9);
NHA_COMMON_TABLE(NetV10);
NHA_COMMON_TABLE(NetV11);
NHA_COMMON_TABLE(NetV12);
NHA_AT(NetV7, get_device_mr, 136);
NHA_AT(NetV8, irecv_consumed, 144);
NHA_AT(NetV9, make_vdevice, 152);
NHA_AT(NetV10, make_vdevice, 152);
NHA_AT(NetV11, finalize, 160);
NHA_AT(NetV11, set_net_attr, 168);
NHA_AT(NetV12, set_net_attr, 168);
static_assert(sizeof(NetV6) == 136 && sizeof(NetV7) == 152 && sizeof(NetV8) == 152 &&
              sizeof(NetV9) == 160 && sizeof(NetV10) == 160 && sizeof(NetV11) == 176 &&
              sizeof(NetV12) == 176);

#undef NHA_COMMON_TABLE
#undef NHA_AT

}  // namespace nccl_ha::abi
