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

/// A port as it was opened once; it ends with its device, and another one comes in its place.
struct RdmaEnd {
  size_t port = 0;
  uint32_t incarnation = 0;  ///< as PathFactory::incarnation()
};

/// How much a device has of what connections need, all processes together.
struct DeviceLimits {
  size_t queue_pairs = 0;
  size_t completion_queues = 0;
  size_t completion_entries = 0;  ///< of one queue
  size_t regions = 0;
};

/// Ports by index.  Regions belong to a port's device, as it was opened once.  An end that is over
/// counts as one of a device that has failed.
class RdmaPorts {
 public:
  virtual ~RdmaPorts() = default;
  RdmaPorts() = default;
  RdmaPorts(const RdmaPorts&) = delete;
  RdmaPorts& operator=(const RdmaPorts&) = delete;

  /// Any thread.
  virtual size_t count() const = 0;
  /// As it was first: what a port is called stays so.
  virtual const DeviceFacts& at(size_t port) const = 0;
  virtual DeviceLimits limits(size_t port) const = 0;
  virtual uint32_t incarnation(size_t port) const = 0;
  /// Family 0: it has none.
  virtual IpAddress address(size_t port) const = 0;
  /// As PathFactory::is_busy().
  virtual bool is_busy(const RdmaEnd& end) const = 0;
  // As PathFactory's.
  virtual Result<RegionKeys> add_memory(const RdmaEnd& end, const RegionOrigin& origin,
                                        Waits who) = 0;
  virtual Result<std::shared_ptr<OwnMemory>> own_memory(const RdmaEnd& end,
                                                        const RegionOrigin& origin,
                                                        std::shared_ptr<void> bytes) = 0;
  /// As Provider::remove_memory(), of whichever end it is.
  virtual void remove_memory(const RegionKeys& keys, std::shared_ptr<void> keep) = 0;

  /// On the context's thread.
  virtual Result<OwnedPath> create_path(Context& context, const RdmaEnd& end,
                                        const PathOptions& options, PathOwner* owner) = 0;
  /// The same; unreliable datagrams.
  virtual Result<std::unique_ptr<PacketIo>> open_datagrams(Context& context,
                                                           const RdmaEnd& end) = 0;
};

}  // namespace nccl_ha::fabric
