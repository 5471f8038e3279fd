// The RDMA ports of this host as the provider uses them, whoever drives them: rdma-core, or a
// simulated network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/context.h"
#include "runtime/fabric/interfaces.h"
#include "runtime/fabric/packet_io.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/region_registry.h"
#include "runtime/result.h"

namespace nccl_ha::fabric {

/// A path together with what keeps its port alive.  Destroy both on the worker's thread, at the end
/// of a turn (an actor's destructor is such a place).
struct OwnedPath {
  std::shared_ptr<void> port;
  std::unique_ptr<Path> path;
  void reset() {
    path.reset();
    port.reset();
  }
};

/// What a device is, whatever carries its paths.
struct DeviceFacts {
  std::string name;  ///< unique
  uint64_t guid = 0;
  std::string pci_path;  ///< empty for a software device
  int numa_node = -1;
  int64_t speed_mbps = 0;
  int port = 1;
  bool peer_memory = false;  ///< GPU pointers can be registered
  bool dmabuf = false;       ///< GPU memory can be registered by DMA-BUF descriptor
};

/// What there is to know about one port.
struct RdmaPort : DeviceFacts {
  std::string netdev;  ///< the interface beneath; empty: there is none
  IpAddress address;   ///< family 0: none
};

/// How a NIC is called where all fabrics meet (NicNotice).
inline const std::string& nic_name(const RdmaPort& port) {
  return port.netdev.empty() ? port.name : port.netdev;
}

/// Ports by index.  Regions belong to a port's device.
class RdmaPorts {
 public:
  virtual ~RdmaPorts() = default;
  RdmaPorts() = default;
  RdmaPorts(const RdmaPorts&) = delete;
  RdmaPorts& operator=(const RdmaPorts&) = delete;

  /// Any thread.
  virtual size_t count() const = 0;
  virtual const RdmaPort& at(size_t port) const = 0;
  /// How many queue pairs its device has.
  virtual size_t queue_pairs(size_t port) const = 0;
  virtual Result<RegionKeys> add_memory(size_t port, const RegionOrigin& origin) = 0;
  /// When it returns nobody touches the memory by these keys any more.
  virtual void remove_memory(size_t port, const RegionKeys& keys) = 0;

  /// On the context's thread.
  virtual Result<OwnedPath> create_path(Context& context, size_t port, const PathOptions& options,
                                        PathOwner* owner) = 0;
  /// The same; unreliable datagrams.
  virtual Result<std::unique_ptr<PacketIo>> open_datagrams(Context& context, size_t port) = 0;
};

}  // namespace nccl_ha::fabric
