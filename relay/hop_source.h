// Where the paths between neighbours come from, and who the neighbours are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "relay/node_id.h"
#include "runtime/engine/context.h"
#include "runtime/fabric/memory.h"
#include "runtime/fabric/own_memory.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/provider.h"
#include "runtime/fabric/socket_address.h"

namespace nccl_ha::relay {

/// Where a hop begins on this host, and what carries it.
struct HopPlace {
  fabric::Attachment at;
  /// The processor writes what comes, by keys that are good for hops of every such kind and that
  /// programs know memory by.  Else a device does, by keys of its own (keys_of()): where it has
  /// none it reaches slots only, and the processor copies.
  bool direct = true;
  bool reaches_gpu = false;  ///< PathTraits::reaches_gpu_memory, of a device's
};

/// Owner's threads; outlives the paths.
class HopSource {
 public:
  virtual ~HopSource() = default;
  /// What a path may be that begins at this host's address `local`, the best first.  The last one
  /// is what every host has.
  virtual std::vector<HopPlace> places(const sockaddr* local) const = 0;
  /// A hop from there to that neighbour, for which this host had asked, did not come up: for a
  /// while it asks with other ones.  What every host has is never avoided: where that does not come
  /// up, nothing is any more.
  virtual void avoid(const HopPlace& place, NodeId neighbour, Instant now,
                     const std::string& why) = 0;
  virtual bool avoids(const HopPlace& place, NodeId neighbour, Instant now) const = 0;
  virtual Result<fabric::OwnedPath> make_hop(Context& context, const HopPlace& place,
                                             const sockaddr* local,
                                             const fabric::PathOptions& options,
                                             fabric::PathOwner* owner) = 0;
  /// For hops there that are made with it (PathOptions::memory), both to write from and to be
  /// written to.  `domain` as theirs.
  virtual Result<std::shared_ptr<fabric::OwnMemory>> own_memory(const HopPlace& place,
                                                                uint64_t domain,
                                                                std::shared_ptr<void> bytes,
                                                                size_t length) = 0;
  /// By what keys hops there, which are not direct, know memory that programs know by `key`; an
  /// error: by none.
  virtual Result<fabric::RegionKeys> keys_of(const HopPlace& place, uint64_t domain,
                                             uint32_t key) = 0;
  /// As Provider::has_gpu_memory() has it.
  virtual bool has_gpu_memory(uint64_t domain) const = 0;
  /// That programs register theirs with, and direct hops know.
  virtual fabric::Memory& memory() = 0;
};

/// For a hop there to come up, of the time for the whole route, 0: the path's own.  A device that
/// is not up by then leaves time for another attempt without it.
constexpr Duration hop_limit(const HopPlace& place, Duration route) {
  constexpr Duration of_device = std::chrono::seconds(3);
  return place.direct || (route != Duration(0) && route < of_device) ? route : of_device;
}

/// Makes a hop to that neighbour at the best of `places` from number `choice` on, which is then the
/// number of the one that was taken: `make(place)` fails where there can be none.  Those that are
/// avoided have their turn after all others, with numbers that go on, as nothing else may be left.
/// Whoever insists on these places avoids none.
template <class Make>
Result<void> make_best_hop(const HopSource& hops, const std::vector<HopPlace>& places,
                           NodeId neighbour, Instant now, size_t& choice, bool insists,
                           const Make& make) {
  Result<void> made = fail(Errc::internal, "a cable without any kind of hop");
  for (; choice < 2 * places.size(); ++choice) {
    const HopPlace& place = places[choice % places.size()];
    const bool late = !insists && hops.avoids(place, neighbour, now);
    if (late == (choice >= places.size())) {
      made = make(place);
    }
    if (made) {
      break;
    }
  }
  return made;
}

/// The first place of a kind that a neighbour names; nullopt: there is none.
inline std::optional<HopPlace> place_of_kind(const std::vector<HopPlace>& places,
                                             fabric::FabricKind kind) {
  for (const HopPlace& place : places) {
    if (place.at.kind == kind) {
      return place;
    }
  }
  return std::nullopt;
}

/// A neighbour on one of the cables to it.
struct NextHop {
  fabric::SocketAddress relay;  ///< where its relay node listens
  fabric::SocketAddress local;  ///< this host's address there; of length 0: the kernel knows
  uint32_t key = 0;             ///< Neighbour::key
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
  /// Any thread.  Whoever speaks from `from` is that neighbour, on a cable to it.
  virtual bool is_at(NodeId neighbour, const IpAddress& from) const = 0;
  /// Any thread.  The neighbour's node has not begun anew since that incarnation, as far as is
  /// known.
  virtual bool lives(NodeId neighbour, uint32_t incarnation) const {
    (void)neighbour;
    (void)incarnation;
    return true;
  }
  /// Any thread.  What this host is called; nullopt: whoever uses it knows better.
  virtual std::optional<NodeId> self() const { return std::nullopt; }
  /// Any thread.  A host's name for messages, or its id.
  virtual std::string name_of(NodeId node) const { return text(node); }
  /// Any thread.  There are hosts over which a path to another one could lead.
  virtual bool any() const { return true; }
  /// Any thread.  The hosts on the way of a new path that nobody has named a route for, in order;
  /// empty: no way is known besides those that the connection's other paths keep to.
  virtual std::vector<NodeId> relays_to(NodeId destination, const Way& way) {
    (void)destination;
    (void)way;
    return {};
  }
  /// Any thread.  No path came about over the way that relays_to() told last: another one is told
  /// next, if there is one.
  virtual void refused(NodeId destination, const Way& way) {
    (void)destination;
    (void)way;
  }
};

}  // namespace nccl_ha::relay
