// Where the paths between neighbours come from, and who the neighbours are.
#pragma once

#include <optional>
#include <vector>

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

/// Which of a connection's ways is asked for.  Each of them keeps to a first host of its own, so
/// that one goes on when the other one's fails.
struct Way {
  uint64_t connection = 0;
  uint8_t number = 0;  ///< 0: the one that it begins with
};
inline constexpr size_t ways_max = 2;

class NextHops {
 public:
  virtual ~NextHops() = default;
  /// Any thread.  nullopt: it is no neighbour.
  virtual std::optional<NextHop> find(NodeId neighbour) const = 0;
  /// Any thread.  What this host is called; nullopt: whoever uses it knows better.
  virtual std::optional<NodeId> self() const { return std::nullopt; }
  /// Any thread.  The hosts on the way of a new path that nobody has named a route for, in order;
  /// empty: no way is known besides those that the connection's other paths keep to.
  virtual std::vector<NodeId> relays_to(NodeId destination, const Way& way) {
    (void)destination;
    (void)way;
    return {};
  }
};

}  // namespace nccl_ha::relay
