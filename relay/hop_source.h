// Where the paths between neighbours come from, and who the neighbours are.
#pragma once

#include <optional>

#include "relay/node_id.h"
#include "runtime/engine/context.h"
#include "runtime/fabric/memory.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/socket_address.h"

namespace nccl_ha::relay {

/// Owner's threads; outlives the paths.
class HopSource {
 public:
  virtual ~HopSource() = default;
  /// A path that begins at this host's address `local`.
  virtual Result<fabric::OwnedPath> make_hop(Context& context, const sockaddr* local,
                                             const fabric::PathOptions& options,
                                             fabric::PathOwner* owner) = 0;
  /// That such paths know.
  virtual fabric::Memory& memory() = 0;
};

/// A neighbour on one of the cables to it.
struct NextHop {
  fabric::SocketAddress relay;  ///< where its relay node listens
  fabric::SocketAddress local;  ///< this host's address there; of length 0: the kernel knows
};

class NextHops {
 public:
  virtual ~NextHops() = default;
  /// nullopt: it is no neighbour.
  virtual std::optional<NextHop> find(NodeId neighbour) const = 0;
};

}  // namespace nccl_ha::relay
