// Who answers at the other end of a cable, found out by hellos and lost by their absence.
//
// Pure: time comes with each call, packets go to whoever asks for them.  One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "relay/packet.h"
#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/fabric/socket_address.h"

namespace nccl_ha::relay {

/// An interface of this host on which neighbours may be.
struct MeshInterface {
  uint32_t number = 0;  ///< its own on this host (ifindex)
  std::string name;
  uint32_t speed_mbps = 0;
  bool operator==(const MeshInterface&) const = default;
};

/// A host that is heard on an interface of ours, from one of its own.
struct Neighbour {
  NodeId node{};
  uint32_t incarnation = 0;
  uint32_t interface = 0;       ///< ours
  uint32_t peer_interface = 0;  ///< its own
  fabric::SocketAddress address;
  std::vector<IpAddress> addresses;  ///< from which it said that it hears us
  bool two_way = false;              ///< it hears us too
  bool asked = false;                ///< it said more than hello before that was known
  uint64_t number = 0;               ///< of its newest hello
  uint32_t key = 0;                  ///< of the number that it seals with; 0: it has none
  Instant sealed{};                  ///< when it last did
  Instant since{};
  Instant heard{};
  Duration dead{};       ///< silent for so long: gone
  uint64_t digest = 0;   ///< what it last told
  unsigned differs = 0;  ///< hellos in a row whose digest was not ours

  bool speaks_from(const IpAddress& from) const;
};

class Neighbours {
 public:
  struct Timing {
    Duration hello = std::chrono::milliseconds(500);
    Duration dead = std::chrono::milliseconds(2000);
  };
  /// Between hellos that answer new neighbours.
  static constexpr Duration answers_apart = std::chrono::milliseconds(20);

  Neighbours(NodeId self, uint32_t incarnation, const Timing& timing, uint64_t seed)
      : self_(self), incarnation_(incarnation), timing_(timing), random_(seed) {}

  /// Neighbours on those that are gone are gone.
  void set_interfaces(const std::vector<MeshInterface>& interfaces, Instant now);
  const std::vector<MeshInterface>& interfaces() const { return interfaces_; }

  struct Change {
    bool up = false;    ///< it hears us now
    bool down = false;  ///< it did, and does not any more
    bool operator==(const Change&) const = default;
  };
  /// From `from`, on interface `interface` of ours.  Another life of a neighbour takes the place of
  /// the one before, and a goodbye counts, when it names this host's present incarnation: one that
  /// was recorded before does not.
  Change on_hello(uint32_t interface, const fabric::SocketAddress& from,
                  const DiscoveryPacket& packet, const HelloPacket& hello, Instant now);
  /// Those that were silent for too long are gone; true: some of them heard us.
  bool expire(Instant now);

  /// The interfaces whose hello is due; counts as sent.
  std::vector<uint32_t> due(Instant now);
  /// So many others are heard there, whether or not they hear us.
  size_t hosts_on(uint32_t interface) const;
  HelloPacket hello_for(uint32_t interface, uint64_t digest, bool leaves);
  Instant next_deadline() const;

  /// Who says `packet`; null: nobody whom we hear.
  Neighbour* find(uint32_t interface, const DiscoveryPacket& packet);
  /// On whichever cable; null: it does not hear us.
  const Neighbour* two_way(NodeId node) const;
  const std::vector<Neighbour>& all() const { return neighbours_; }
  std::vector<Neighbour>& all() { return neighbours_; }

  /// Grows when somebody hears us now, does not any more, or is reached elsewhere.
  uint64_t revision() const { return revision_; }
  /// More on one interface than heard_max: each took the place of one that does not hear us, or
  /// was not heard.
  uint64_t refused() const { return refused_; }
  uint64_t duplicates() const { return duplicates_; }  ///< hellos of another host with our id
  size_t memory_bytes() const;

 private:
  struct Schedule {
    Instant last{};
    Instant next{};
  };
  Neighbour* enter(uint32_t interface, const DiscoveryPacket& packet, Instant now);
  bool make_room(uint32_t interface);
  bool end_earlier_lives(uint32_t interface, const DiscoveryPacket& packet);
  void answer_soon(uint32_t interface, Instant now);
  Duration jittered();

  NodeId self_;
  uint32_t incarnation_;
  Timing timing_;
  Random random_;
  std::vector<MeshInterface> interfaces_;
  std::vector<Schedule> schedules_;  ///< of each interface
  std::vector<Neighbour> neighbours_;
  uint64_t hellos_ = 0;
  uint64_t revision_ = 0;
  uint64_t refused_ = 0;
  uint64_t duplicates_ = 0;
};

}  // namespace nccl_ha::relay
