// The packets of discovery.
//
// Header, little-endian: magic u32, version u8, kind u8, length u16 (of the whole packet), sender
// u64, its incarnation u32, its interface u32 on which it says this (0: to a process of its host).
// Then by kind:
//   hello     number u64, hello ms u16, dead ms u16, flags u8 (1: it leaves, 2: it looks, 4:
//             crowded), seeks ms u16, digest u64, count u8, of those heard there: node u64,
//             incarnation u32, interface u32
//   states    count u8; length u16 and a link state each
//   summary   first u64, last u64, count u8; node u64, sequence u64 each, ascending, in between
//   request   count u8; node u64 each
//   query     flags u8 (1: it seeks): who runs on this host too asks for all that is known
//   hand_over nothing: a relay node begins on this host and wants the port, which a process has
//   that
//             relays for want of a node
//   neighbours states u32, flags u8 (1: rests, 2: open, 4: of a job, 8: looks, 16:
//             crowded), key's name u32, count u8; node u64, interface
//   u32, peer
//             interface u32, key u32, port u16, address (family u8, prefix u8, 4 or 16 bytes)
//             each: the answer begins with it
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "relay/link_state.h"
#include "relay/node_id.h"
#include "runtime/base/result.h"

namespace nccl_ha::relay {

inline constexpr uint32_t discovery_magic = 0x4D48414E;  // "NAHM"
inline constexpr uint8_t discovery_version = 3;
inline constexpr size_t discovery_header_bytes = 24;
/// Any packet: 1500 bytes without the headers of IPv6 (40) and UDP (8), with room for a seal.
inline constexpr size_t discovery_packet_max = 1412;

enum class PacketKind : uint8_t {
  hello = 1,
  states = 2,
  summary = 3,
  request = 4,
  query = 5,
  neighbours = 6,
  hand_over = 7
};

struct Heard {
  NodeId node{};
  uint32_t incarnation = 0;
  uint32_t interface = 0;  ///< the heard one's
  bool operator==(const Heard&) const = default;
};

/// "I am here, and these I hear."  Whoever finds itself among them knows that both directions work.
struct HelloPacket {
  uint64_t number = 0;  ///< of those of its sender, ascending
  uint16_t hello_ms = 0;
  uint16_t dead_ms = 0;  ///< silent for so long: gone
  bool leaves = false;
  uint16_t seeks_ms = 0;  ///< for so long a peer of some host is looked for; 0: none is
  bool looks = false;     ///< it takes part by what it hears (MeshLook)
  bool crowded = false;   ///< on this interface it has heard several hosts, and it rests
  uint64_t digest = 0;    ///< LinkStates::digest
  std::vector<Heard> heard;
};

struct StatesPacket {
  std::vector<LinkState> states;
};

/// All that the sender knows between two ids, both included.
struct SummaryPacket {
  struct Entry {
    NodeId node{};
    uint64_t sequence = 0;
  };
  NodeId first{};
  NodeId last{};
  std::vector<Entry> entries;
};

struct RequestPacket {
  std::vector<NodeId> nodes;
};

struct QueryPacket {
  bool seeks = false;  ///< a peer of the asking process is out of reach
};

struct HandOverPacket {};

/// Of the answer to a query the first one: who answers at the other ends of this host's cables, and
/// how many packets with link states follow.
struct NeighboursPacket {
  struct Entry {
    NodeId node{};
    uint32_t interface = 0;       ///< of the host that tells
    uint32_t peer_interface = 0;  ///< the neighbour's
    uint32_t key = 0;             ///< Neighbour::key
    uint16_t port = 0;
    IpAddress address;  ///< the neighbour's; the scope of a link-local one is `interface`
  };
  uint32_t states = 0;    ///< packets
  bool rests = false;     ///< MeshView::rests
  bool open = false;      ///< hosts without a key are heard
  bool of_job = false;    ///< a process of a job answers, which nobody told to relay
  bool looks = false;     ///< MeshView::looks
  bool crowded = false;   ///< MeshView::crowded
  uint32_t key_name = 0;  ///< of the cluster's key that seals (KeyRing::name); 0: there is none
  std::vector<Entry> entries;
};

struct DiscoveryPacket {
  NodeId sender{};
  uint32_t incarnation = 0;  ///< another one for each life of the sender's process
  std::variant<HelloPacket, StatesPacket, SummaryPacket, RequestPacket, QueryPacket,
               NeighboursPacket, HandOverPacket>
      body;
  uint32_t interface = 0;  ///< the sender's own number of the one on which it says this
};

// So many fit into a packet.
inline constexpr size_t heard_max = links_max;
inline constexpr size_t summary_entries_max = 80;
inline constexpr size_t request_nodes_max = 160;
inline constexpr size_t neighbours_per_packet_max = 34;

/// The lists must not be longer than the limits above, and states must fit (StatesWriter).
std::vector<std::byte> encode(const DiscoveryPacket& packet);
Result<DiscoveryPacket> decode_packet(std::span<const std::byte> bytes);

/// Puts encoded link states into as few packets as they need.
class StatesWriter {
 public:
  /// `interface`: as a packet's.
  StatesWriter(NodeId sender, uint32_t incarnation, uint32_t interface)
      : sender_(sender), incarnation_(incarnation), interface_(interface) {}
  /// `lifetime_ms` replaces the one in the bytes.
  void add(std::span<const std::byte> encoded, uint32_t lifetime_ms);
  std::vector<std::vector<std::byte>> take();

 private:
  NodeId sender_;
  uint32_t incarnation_;
  uint32_t interface_;
  std::vector<std::vector<std::byte>> packets_;
};

}  // namespace nccl_ha::relay
