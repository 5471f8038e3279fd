#include "tools/common/net_library_tables.h"

#include <algorithm>
#include <climits>
#include <iterator>
#include <type_traits>

namespace nccl_ha::tools {
namespace {

using abi::NcclResult;

template <int version>
struct Version;
template <>
struct Version<6> {
  using Table = abi::NetV6;
  using Properties = abi::PropertiesV6;
};
template <>
struct Version<7> {
  using Table = abi::NetV7;
  using Properties = abi::PropertiesV7;
};
template <>
struct Version<8> {
  using Table = abi::NetV8;
  using Properties = abi::PropertiesV8;
};
template <>
struct Version<9> {
  using Table = abi::NetV9;
  using Properties = abi::PropertiesV9;
};
template <>
struct Version<10> {
  using Table = abi::NetV10;
  using Properties = abi::PropertiesV10;
};
template <>
struct Version<11> {
  using Table = abi::NetV11;
  using Properties = abi::PropertiesV11;
};
template <>
struct Version<12> {
  using Table = abi::NetV12;
  using Properties = abi::PropertiesV12;
};

/// One version's calls behind the common signatures.  What changed when: sizes became size_t for
/// regMr in v8 and for isend and irecv in v9; the profiler came with v10, the context with v11.
template <int version>
struct Adapter {
  using Table = typename Version<version>::Table;

  static const Table& of(const void* table) { return *static_cast<const Table*>(table); }

  static const char* name(const void* table) { return of(table).name; }

  static NcclResult init(const void* table, void** context, uint64_t comm_id) {
    if constexpr (version >= 11) {
      abi::CommConfig config{};
      config.traffic_class = -1;  // undefined
      return of(table).init(context, comm_id, &config, plugin_logger(), nullptr);
    } else if constexpr (version == 10) {
      return of(table).init(plugin_logger(), nullptr);
    } else {
      return of(table).init(plugin_logger());
    }
  }

  static NcclResult devices(const void* table, int* count) { return of(table).devices(count); }

  static NcclResult properties(const void* table, int device, NetDevice* out) {
    typename Version<version>::Properties p{};
    const NcclResult result = of(table).get_properties(device, &p);
    if (result != NcclResult::success) {
      return result;
    }
    out->name = p.name == nullptr ? "" : p.name;
    out->pci_path = p.pci_path == nullptr ? "" : p.pci_path;
    out->guid = p.guid;
    out->pointer_support = p.ptr_support;
    out->speed_mbps = p.speed;
    out->port = p.port;
    out->max_comms = p.max_comms;
    out->max_recvs = p.max_recvs;
    if constexpr (version >= 9) {
      out->max_message_bytes = p.max_p2p_bytes;
    }
    return result;
  }

  static NcclResult listen(const void* table, void* context, int device, void* handle,
                           void** comm) {
    if constexpr (version >= 11) {
      return of(table).listen(context, device, handle, comm);
    } else {
      return of(table).listen(device, handle, comm);
    }
  }

  static NcclResult connect(const void* table, void* context, int device, void* handle,
                            void** comm) {
    // Host transports leave the device handle alone, as NCCL finds it for them.
    abi::DeviceHandle* offload = nullptr;
    if constexpr (version >= 11) {
      return of(table).connect(context, device, handle, comm, &offload);
    } else if constexpr (version == 10) {
      abi::CommConfig config{};
      config.traffic_class = -1;
      return of(table).connect(device, &config, handle, comm, &offload);
    } else if constexpr (version >= 7) {
      return of(table).connect(device, handle, comm, &offload);
    } else {
      return of(table).connect(device, handle, comm);
    }
  }

  static NcclResult accept(const void* table, void* listen_comm, void** comm) {
    if constexpr (version >= 7) {
      abi::DeviceHandle* offload = nullptr;
      return of(table).accept(listen_comm, comm, &offload);
    } else {
      return of(table).accept(listen_comm, comm);
    }
  }

  static NcclResult register_memory(const void* table, void* comm, void* data, size_t size,
                                    void** mhandle) {
    if constexpr (version <= 7) {
      if (size > INT_MAX) {
        return NcclResult::internal_error;  // as NCCL answers for these versions
      }
      return of(table).reg_mr(comm, data, static_cast<int>(size), abi::ptr_host, mhandle);
    } else {
      return of(table).reg_mr(comm, data, size, abi::ptr_host, mhandle);
    }
  }

  static NcclResult deregister_memory(const void* table, void* comm, void* mhandle) {
    return of(table).dereg_mr(comm, mhandle);
  }

  static NcclResult isend(const void* table, void* comm, void* data, size_t size, int tag,
                          void* mhandle, void** request) {
    if constexpr (version >= 10) {
      return of(table).isend(comm, data, size, tag, mhandle, nullptr, request);
    } else if constexpr (version == 9) {
      return of(table).isend(comm, data, size, tag, mhandle, request);
    } else {
      return of(table).isend(comm, data, static_cast<int>(size), tag, mhandle, request);
    }
  }

  static NcclResult irecv(const void* table, void* comm, int count, void** data,
                          const size_t* sizes, const int* tags, void** mhandles, void** request) {
    auto* tag_list = const_cast<int*>(tags);  // the ABI lacks const; plugins only read
    if constexpr (version >= 10) {
      return of(table).irecv(comm, count, data, const_cast<size_t*>(sizes), tag_list, mhandles,
                             nullptr, request);
    } else if constexpr (version == 9) {
      return of(table).irecv(comm, count, data, const_cast<size_t*>(sizes), tag_list, mhandles,
                             request);
    } else {
      int narrow[8];
      for (int i = 0; i < count && i < 8; ++i) {  // a wrong count is the plugin's to refuse
        narrow[i] = static_cast<int>(sizes[i]);
      }
      return of(table).irecv(comm, count, data, narrow, tag_list, mhandles, request);
    }
  }

  static NcclResult iflush(const void* table, void* comm, int count, void** data, int* sizes,
                           void** mhandles, void** request) {
    return of(table).iflush(comm, count, data, sizes, mhandles, request);
  }

  static NcclResult close_send(const void* table, void* comm) { return of(table).close_send(comm); }
  static NcclResult close_recv(const void* table, void* comm) { return of(table).close_recv(comm); }
  static NcclResult close_listen(const void* table, void* comm) {
    return of(table).close_listen(comm);
  }

  static NcclResult merge(const void* table, int* device, const int* members, int count) {
    if constexpr (version >= 9) {
      std::conditional_t<version >= 12, abi::VDevicePropsV12, abi::VDevicePropsV9> properties{};
      if (of(table).make_vdevice == nullptr ||
          count > static_cast<int>(std::size(properties.devs))) {
        return NcclResult::invalid_usage;
      }
      properties.ndevs = count;
      std::copy_n(members, count, properties.devs);
      return of(table).make_vdevice(device, &properties);
    } else {
      static_cast<void>(table);
      static_cast<void>(device);
      static_cast<void>(members);
      static_cast<void>(count);
      return NcclResult::invalid_usage;
    }
  }

  static NcclResult finalize(const void* table, void* context) {
    if constexpr (version >= 11) {
      return of(table).finalize == nullptr ? NcclResult::success : of(table).finalize(context);
    } else {
      static_cast<void>(table);
      static_cast<void>(context);
      return NcclResult::success;
    }
  }

  /// The first of the calls NCCL cannot do without that the table lacks.
  static const char* missing(const void* table) {
    const Table& t = of(table);
    return t.name == nullptr             ? "name"
           : t.init == nullptr           ? "init"
           : t.devices == nullptr        ? "devices"
           : t.get_properties == nullptr ? "getProperties"
           : t.listen == nullptr         ? "listen"
           : t.connect == nullptr        ? "connect"
           : t.accept == nullptr         ? "accept"
           : t.reg_mr == nullptr         ? "regMr"
           : t.dereg_mr == nullptr       ? "deregMr"
           : t.isend == nullptr          ? "isend"
           : t.irecv == nullptr          ? "irecv"
           : t.test == nullptr           ? "test"
           : t.close_send == nullptr     ? "closeSend"
           : t.close_recv == nullptr     ? "closeRecv"
           : t.close_listen == nullptr   ? "closeListen"
                                         : nullptr;
  }

  static NetApi::Calls calls(const void* table) {
    return {init,           devices,         properties,        merge,        listen,   connect,
            accept,         register_memory, deregister_memory, isend,        irecv,    iflush,
            of(table).test, close_send,      close_recv,        close_listen, finalize, name,
            missing(table)};
  }
};

}  // namespace

NetApi::Calls calls_of(const void* table, int version) {
  switch (version) {
    case 6:
      return Adapter<6>::calls(table);
    case 7:
      return Adapter<7>::calls(table);
    case 8:
      return Adapter<8>::calls(table);
    case 9:
      return Adapter<9>::calls(table);
    case 10:
      return Adapter<10>::calls(table);
    case 11:
      return Adapter<11>::calls(table);
    case 12:
      return Adapter<12>::calls(table);
    default: {
      NetApi::Calls none{};
      none.missing = "known version";
      return none;
    }
  }
}

}  // namespace nccl_ha::tools
