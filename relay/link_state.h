// What a host tells all others of itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "relay/node_id.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/result.h"

namespace nccl_ha::relay {

// So that a host's whole state fits into one packet of an Ethernet's usual 1500 bytes.
inline constexpr size_t links_max = 48;
inline constexpr size_t addresses_max = 12;
inline constexpr size_t node_name_max = 63;  ///< bytes, each a visible character of ASCII
/// A sequence number above it is no host's: at one per millisecond it takes more than 10^8 years.
inline constexpr uint64_t sequence_max = uint64_t{1} << 62;
/// How far apart two numbers of one host can be: a life of its process begins below half of that,
/// and goes on by at most ten a second.
inline constexpr uint64_t sequence_jump_max = uint64_t{1} << 32;
/// What nobody renews is forgotten after so long, also where somebody invented it.
inline constexpr uint32_t lifetime_max_ms = 600'000;

/// One end of a cable: an interface of a host, and whom it hears there.
struct LinkRecord {
  NodeId neighbour{};
  uint32_t interface = 0;       ///< the host's own number for it
  uint32_t peer_interface = 0;  ///< the neighbour's
  uint32_t speed_mbps = 0;      ///< 10^6 bit/s
  bool operator==(const LinkRecord&) const = default;
};

struct LinkState {
  NodeId origin{};
  uint64_t sequence = 0;     ///< the higher one replaces the lower
  uint32_t lifetime_ms = 0;  ///< what is left of it
  bool relays = true;        ///< others' paths may lead through this host
  std::string name;          ///< for people
  std::vector<IpAddress> addresses;
  std::vector<LinkRecord> links;
};

// Wire format, all numbers little-endian:
//   origin u64, sequence u64, lifetime u32, flags u8 (1: relays), name (length u8, bytes),
//   addresses (count u8; family u8, prefix u8, 4 or 16 bytes each),
//   links (count u8; neighbour u64, interface u32, peer interface u32, speed u32 each)
inline constexpr size_t lifetime_offset = 16;

/// What a terminal or a page may show: other characters are replaced by '?', and what is too long
/// is cut.
std::string clean_node_name(std::string name);

std::vector<std::byte> encode(const LinkState& state);
/// The bytes and nothing else; what is refused says why.
Result<LinkState> decode_link_state(std::span<const std::byte> bytes);

}  // namespace nccl_ha::relay
