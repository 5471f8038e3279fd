// The one internal interface behind all versions of NCCL's ABI.
//
// Control calls may come from several threads at once; data calls (isend, irecv, iflush, test) on
// one comm come from one thread at a time, beside regMr and deregMr from another.  None blocks.
// Every out-parameter is written in every case.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "plugin/nccl_abi.h"

namespace nccl_ha::plugin {

/// What NCCL may know of a device; the superset of all versions.
struct DeviceProperties {
  const char* name;      ///< unique; NCCL uses it as a key.  Valid as long as the library is loaded
  const char* pci_path;  ///< may be null
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
  int max_multi_request;
  int16_t rail_id;
  int16_t plane_id;
  int member_count;            ///< of what NCCL merged; 1: it is no such device
  std::array<int, 4> members;  ///< their numbers, or its own
};

/// `ctx` is null for ABIs without contexts.
abi::NcclResult net_init(void** ctx, uint64_t comm_id, int traffic_class, abi::Logger logger,
                         abi::ProfilerCallback profiler) noexcept;
/// Accepts null and anything that net_init left in *ctx.
abi::NcclResult net_finalize(void* ctx) noexcept;
abi::NcclResult net_devices(int* ndev) noexcept;
abi::NcclResult net_properties(int dev, DeviceProperties* out) noexcept;
/// Appends a device of `count` others; *dev: its number.
abi::NcclResult net_make_vdevice(int* dev, const int* members, int count) noexcept;

/// Writes all 128 bytes of `handle`.
abi::NcclResult net_listen(void* ctx, int dev, void* handle, void** listen_comm) noexcept;
/// success with *send_comm null: not yet, call again with the same handle memory.
abi::NcclResult net_connect(void* ctx, int dev, int traffic_class, void* handle,
                            void** send_comm) noexcept;
abi::NcclResult net_accept(void* listen_comm, void** recv_comm) noexcept;

abi::NcclResult net_reg_mr(void* comm, void* data, size_t size, int type, void** mhandle) noexcept;
abi::NcclResult net_reg_mr_dmabuf(void* comm, void* data, size_t size, int type, uint64_t offset,
                                  int fd, void** mhandle) noexcept;
/// When it returns nobody touches the memory any more, whatever is still outstanding.
abi::NcclResult net_dereg_mr(void* comm, void* mhandle) noexcept;

/// *request null: the peer has not posted a matching receive yet, or no slot is free; call again.
abi::NcclResult net_isend(void* comm, void* data, size_t size, int tag, void* mhandle,
                          void* phandle, void** request) noexcept;
/// `may_be_polled`: the reader looks at the memory while it is being written, or the ABI cannot
/// tell (before v9).
abi::NcclResult net_irecv(void* comm, int n, void** data, const size_t* sizes, const int* tags,
                          void** mhandles, void** phandles, bool may_be_polled,
                          void** request) noexcept;
abi::NcclResult net_iflush(void* comm, int n, void** data, const int* sizes, void** mhandles,
                           void** request) noexcept;
/// `sizes` may be null; one int for a send, n for a receive.
abi::NcclResult net_test(void* request, int* done, int* sizes) noexcept;

/// May be called with requests outstanding.
abi::NcclResult net_close_send(void* comm) noexcept;
abi::NcclResult net_close_recv(void* comm) noexcept;
abi::NcclResult net_close_listen(void* comm) noexcept;

abi::NcclResult net_set_attr(void* ctx, const abi::NetAttr* attr) noexcept;

}  // namespace nccl_ha::plugin
