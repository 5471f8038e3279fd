// The RDMA ports of this host as the kinds over RDMA use them, whoever drives them: rdma-core, or a
// simulated network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/result.h"
#include "runtime/engine/context.h"
#include "runtime/fabric/device.h"
#include "runtime/fabric/own_memory.h"
#include "runtime/fabric/packet_io.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/region_registry.h"

namespace nccl_ha::fabric {

/// What there is to know about one port.
struct RdmaPort : DeviceFacts {
  IpAddress address;  ///< family 0: none
};

/// How much a device has of what connections need, all processes together.
struct DeviceLimits {
  size_t queue_pairs = 0;
  size_t completion_queues = 0;
  size_t completion_entries = 0;  ///< of one queue
  size_t regions = 0;
};

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
  virtual DeviceLimits limits(size_t port) const = 0;
  /// As PathFactory::is_busy().
  virtual bool is_busy(size_t port) const {
    (void)port;
    return false;
  }
  // As PathFactory's.
  virtual Result<RegionKeys> add_memory(size_t port, const RegionOrigin& origin, Waits who) = 0;
  virtual std::shared_ptr<OwnMemory> own_memory(size_t port, const RegionOrigin& origin,
                                                std::shared_ptr<void> bytes) = 0;
  /// As Provider::remove_memory().
  virtual void remove_memory(size_t port, const RegionKeys& keys, std::shared_ptr<void> keep) = 0;

  /// On the context's thread.
  virtual Result<OwnedPath> create_path(Context& context, size_t port, const PathOptions& options,
                                        PathOwner* owner) = 0;
  /// The same; unreliable datagrams.
  virtual Result<std::unique_ptr<PacketIo>> open_datagrams(Context& context, size_t port) = 0;
};

}  // namespace nccl_ha::fabric
