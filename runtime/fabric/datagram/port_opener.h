// Datagram ports of a process: one per worker and place, opened with its first path and closed with
// its last.
#pragma once

#include <functional>
#include <memory>

#include "runtime/base/config.h"
#include "runtime/engine/context.h"
#include "runtime/fabric/datagram/fault_io.h"
#include "runtime/fabric/datagram/options.h"
#include "runtime/fabric/memory.h"
#include "runtime/fabric/packet_io.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::fabric {

class DatagramPort;

class PortOpener {
 public:
  /// Errors name the setting.  `memory` outlives it.
  static Result<PortOpener> from(const Config& config, Memory& memory);

  using Open = std::function<Result<std::unique_ptr<PacketIo>>()>;
  /// On the context's thread.  A path on the port of `slot`, which belongs to that thread; where
  /// there is none, on one over what `open` makes.  `mtu` as DatagramPort has it.
  Result<OwnedPath> create_path(Context& context, std::weak_ptr<DatagramPort>& slot, uint32_t mtu,
                                const Open& open, const PathOptions& options, PathOwner* owner);

 private:
  Result<std::shared_ptr<DatagramPort>> port(Context& context, std::weak_ptr<DatagramPort>& slot,
                                             uint32_t mtu, const Open& open);

  DatagramOptions options_;
  FaultPlan faults_;
  Memory* memory_ = nullptr;
};

}  // namespace nccl_ha::fabric
