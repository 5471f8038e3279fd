// Discovery: from hellos on each cable to a picture of all hosts and cables that all hosts share.
//
// Each host tells whom it hears (link state); a change goes at once to all others, from neighbour
// to neighbour (flooding).  What is lost on the way is found out by comparing digests in hellos,
// and then by summaries.  Nothing has to be configured.  Pure: the same calls with the same seed do
// the same.  One thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "relay/job_keys.h"
#include "relay/link_states.h"
#include "relay/mesh_look.h"
#include "relay/neighbours.h"
#include "relay/packet_seal.h"
#include "relay/topology.h"

namespace nccl_ha::relay {

/// How packets leave.
class DiscoveryOutput {
 public:
  /// Null: to whoever is on that interface.
  virtual void send(uint32_t interface, const fabric::SocketAddress* to,
                    std::span<const std::byte> packet) = 0;

 protected:
  ~DiscoveryOutput() = default;
};

class Discovery {
 public:
  struct Identity {
    NodeId node{};
    uint32_t incarnation = 0;  ///< another one for each life of the process
    std::string name;
    std::vector<IpAddress> addresses;  ///< at most addresses_max of them are told
    bool relays = true;                ///< paths of others may lead through this host
    bool looks = false;                ///< it takes part by what it hears (MeshLook)
  };
  struct Timing {
    Neighbours::Timing neighbours;
    /// Packets to one neighbour that tell of changes are at least so far apart.
    Duration floods_apart = std::chrono::milliseconds(2);
    /// Changes of one's own within this time are told together.
    Duration settle = std::chrono::milliseconds(10);
    /// How far one's own link states are apart, so that a loose plug does not busy all hosts.
    Duration states_apart = std::chrono::milliseconds(100);
    Duration refresh = std::chrono::seconds(120);
    Duration lifetime = std::chrono::seconds(400);
  };
  static constexpr size_t nodes_max = 4096;
  /// Whoever is on an interface draws answers of so many bytes at once, and of as many a second as
  /// answer_per_byte allows: names are free to invent, cables are not.
  static constexpr size_t answer_burst = 4 << 20;
  static constexpr Duration answer_per_byte = std::chrono::microseconds(1);
  /// A number in this host's name up to so far above its own is outdone.  What is further away no
  /// host believes that knows this one.
  static constexpr uint64_t sequence_outdone_max = 16 * sequence_jump_max;

  struct Counts {
    uint64_t packets_sent = 0;
    uint64_t bytes_sent = 0;
    uint64_t packets_received = 0;
    uint64_t bytes_received = 0;
    uint64_t refused = 0;  ///< not decoded, or from nobody who hears us
    uint64_t states_received = 0;
    uint64_t summaries_sent = 0;
    uint64_t originated = 0;  ///< link states of this host
    uint64_t hearsay = 0;     ///< newer states of a neighbour that another host told
    uint64_t withheld = 0;    ///< packets that were too much for an interface
  };

  Discovery(Identity identity, const Timing& timing, uint64_t seed, DiscoveryOutput& output);

  enum class KeysOf : uint8_t {
    cluster,        ///< the first one of them seals, and all are good
    job,            ///< each is one's of a communicator, and a neighbour need not be in all of them
    job_or_nobody,  ///< the same, and whoever has none is heard as well
  };
  /// Packets are sealed with them, and those of others have to be; null: neither.
  void set_keys(std::shared_ptr<const KeyRing> keys, Instant now, KeysOf whose = KeysOf::cluster);
  void set_interfaces(const std::vector<MeshInterface>& interfaces, Instant now);
  void set_addresses(std::vector<IpAddress> addresses, Instant now);
  /// Whether paths of others may lead through this host from now on.
  void set_relays(bool relays, Instant now);
  void receive(uint32_t interface, const fabric::SocketAddress& from,
               std::span<const std::byte> bytes, Instant now);
  /// Does what is due.  To be called after receive() as well, which only notes what is to be sent.
  void tick(Instant now);
  Instant next_deadline() const;
  /// A peer of this host's is out of reach, until that is taken back: as long it takes part,
  /// whatever it hears.
  void need(bool needs, Instant now);
  /// The same of another process of this host, which says so again and again.
  void need_now(Instant now);
  /// Says goodbye; nothing is sent any more.
  void leave(Instant now);

  /// Grows with each change of what all hosts say.
  uint64_t revision() const { return states_.revision(); }
  Topology topology(Instant now) const { return Topology::make(states_.decoded(now)); }
  const LinkStates& states() const { return states_; }
  const Neighbours& neighbours() const { return neighbours_; }
  const MeshLook& look() const { return look_; }
  const Identity& identity() const { return identity_; }
  const Counts& counts() const { return counts_; }
  const PacketSeal::Counts& seal_counts() const { return seal_.counts(); }
  size_t memory_bytes() const;

  /// Everything that is known, as packets for somebody on this host who asked for it.
  std::vector<std::vector<std::byte>> answer_query(Instant now) const;

 private:
  /// What goes to one neighbour soon, by its interface there.
  struct Flood {
    std::vector<NodeId> nodes;  ///< some of them twice
    Instant last{};
  };
  using Cable = std::pair<uint32_t, NodeId>;  ///< our interface, the neighbour

  void on(const Neighbour& from, const StatesPacket& packet, Instant now);
  void on(const Neighbour& from, const SummaryPacket& packet, Instant now);
  void on(const Neighbour& from, const RequestPacket& packet, Instant now);
  void on_hello(uint32_t interface, const fabric::SocketAddress& from,
                const DiscoveryPacket& packet, const HelloPacket& hello, uint32_t key, Instant now);
  void on_own_state(const LinkState& state, Instant now);
  void on_hearsay(const Neighbour& itself, const LinkState& state, Instant now);
  void believe_hearsay(Instant now);
  void compare_digests(Neighbour& one, Instant now);
  bool comes_from(const Neighbour& one, const fabric::SocketAddress& from) const;
  void send(uint32_t interface, const fabric::SocketAddress* to, uint32_t key,
            std::span<const std::byte> bytes);
  void send(const Neighbour& to, std::span<const std::byte> bytes);
  std::vector<uint32_t> keys_to_greet_with(uint32_t interface);
  void greet(uint32_t interface, bool leaves, Instant now);
  void note_key(uint32_t interface, const DiscoveryPacket& packet, const HelloPacket& hello,
                uint32_t key, Instant now);
  void look_at(uint32_t interface, const HelloPacket& hello, Instant now);
  bool knows_far_hosts() const;
  void tell_crowd(Instant now);
  void begin_rest(Instant now);
  void end_rest(Instant now);
  DiscoveryPacket packet(uint32_t interface, decltype(DiscoveryPacket::body) body) const;
  /// As long as there is no flood of them.
  void answer(const Neighbour& to, std::span<const std::byte> bytes, Instant now);
  void send_summaries(const Neighbour& to, Instant now);
  std::vector<std::vector<std::byte>> states_for(const Neighbour& to, std::span<const NodeId> nodes,
                                                 Instant now) const;
  void send_hellos(Instant now);
  void flood(NodeId node, uint32_t not_on);
  void send_floods(Instant now);
  void originate_soon(Instant now);
  void originate(Instant now);
  uint64_t first_sequence();
  std::vector<LinkRecord> own_links() const;

  Identity identity_;
  Timing timing_;
  Random random_;
  DiscoveryOutput& output_;
  Neighbours neighbours_;
  LinkStates states_;
  PacketSeal seal_;
  KeysOf keys_of_ = KeysOf::cluster;
  size_t greetings_ = 0;
  MeshLook look_;
  bool begun_ = false;                     ///< to look
  bool rests_ = false;                     ///< as look_ said last
  std::vector<MeshInterface> interfaces_;  ///< also while it rests
  std::set<uint32_t> crowded_on_;          ///< the interfaces that have a switch behind them
  uint32_t crowd_interface_ = 0;           ///< somebody looks there, where a switch is
  Instant crowd_due_ = Instant::max();     ///< to tell so, if nobody else does before
  std::map<Cable, Flood> floods_;
  std::map<NodeId, LinkState> hearsay_;   ///< of neighbours, newer than what they said themselves
  std::map<uint32_t, Instant> answered_;  ///< by interface: when its answers will have been paid
  uint64_t own_sequence_ = 0;
  Instant last_originated_{};
  Instant originate_due_ = Instant::max();
  Instant expire_due_ = Instant::max();
  bool left_ = false;
  Counts counts_;
};

}  // namespace nccl_ha::relay
