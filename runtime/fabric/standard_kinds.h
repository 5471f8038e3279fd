// The kinds of fabric that every build has.  The one place where all of them are named.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/fabric/packet_io.h"
#include "runtime/fabric/path_factory.h"
#include "runtime/fabric/rdma.h"

namespace nccl_ha::fabric {

/// Where devices come from that are not this host's own.
struct StandardSources {
  /// Makes RDMA ports of the board; empty: those of this host that the settings allow.
  std::function<std::unique_ptr<RdmaPorts>(NicBoard& board)> rdma;
  /// Datagram ports run over what it gives for a local address; empty: over UDP sockets.
  std::function<Result<std::unique_ptr<PacketIo>>(const SocketAddress& local)> packets;
  SecretSource* secrets = nullptr;  ///< that memory keys are drawn from; null: the kernel's
};

/// In the order in which their devices are preferred.  Says in the log what was left out and why.
Result<std::vector<std::unique_ptr<PathFactory>>> standard_kinds(const Config& config,
                                                                 FabricHost& host,
                                                                 const StandardSources& sources);

/// An error when HA_NCCL_FABRIC names none of these.
Result<void> check_fabric_name(const Config& config);

}  // namespace nccl_ha::fabric
