// Which rails two hosts may use between them: what an island is, and what follows from it.  Pure.
//
// A device of NCCL's may have several rails, each a NIC of its own.  The first one, SOUT, reaches
// every host; the others, SUP, may reach those of the own island only.  Classification (can SUP
// reach the peer?) is made once per connection and knows nothing of traffic; how much of it goes
// where is ha/rail_policy.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace nccl_ha::ha {

inline constexpr size_t device_rails_max = 4;  ///< of one device, the first one included

/// How a device's rails are used.  Wire format.
enum class RailMode : uint8_t {
  single,    ///< there is one
  isolated,  ///< HA_NCCL_RAIL_MODE=0: within an island SUP, between islands SOUT, and nothing else
  hinted,    ///< HA_NCCL_RAIL_MODE=1: both everywhere, in shares that an agent hints at
  balanced,  ///< all alike, as measured: rails that NCCL merged
};
inline constexpr uint8_t rail_modes = 4;

/// What a host says of its end of a connection.  Wire format but for its layout.
struct RailTerms {
  RailMode mode = RailMode::single;
  uint8_t rails = 1;       ///< 1 to device_rails_max
  uint8_t lanes = 1;       ///< paths that it wants on each rail but the first
  uint8_t prefix_len = 0;  ///< of an island's addresses, in bits; 0: everything is one island
  uint8_t family = 0;      ///< of the SOUT address: 4, 6, or 0 where there is none
  std::array<uint8_t, 16> address{};  ///< network order, the first 4 bytes for IPv4
  bool operator==(const RailTerms&) const = default;
};

enum class PathClass : uint8_t { intra_island, inter_island };

/// What both ends do.
struct RailAgreement {
  PathClass path_class = PathClass::intra_island;
  uint8_t rails = 0;  ///< besides the first one
  uint8_t lanes = 0;  ///< on each of these
  bool operator==(const RailAgreement&) const = default;
};

/// Whether the first `bits` bits are alike; as many as an address has, if it has fewer.
inline bool same_prefix(const RailTerms& one, const RailTerms& other, size_t bits) {
  bits = std::min<size_t>(bits, one.family == 4 ? 32U : 128U);
  const size_t whole = bits / 8;
  const auto mask = static_cast<uint8_t>(0xFF00U >> (bits % 8));
  return std::equal(one.address.begin(), one.address.begin() + static_cast<ptrdiff_t>(whole),
                    other.address.begin()) &&
         (bits % 8 == 0 || ((one.address[whole] ^ other.address[whole]) & mask) == 0);
}

/// Both hosts must take each other for a neighbour: where their prefix lengths differ, the longer
/// one counts.  Addresses of two families are two islands, unless everything is one.
inline PathClass classify(const RailTerms& one, const RailTerms& other) {
  const size_t bits = std::max(one.prefix_len, other.prefix_len);
  return bits == 0 || (one.family == other.family && same_prefix(one, other, bits))
             ? PathClass::intra_island
             : PathClass::inter_island;
}

/// What two hosts that want this have in common; `lanes_most` on the rails besides the first, all
/// together.  Symmetric.  An isolated end makes no path over SUP to another island, whatever the
/// other end wants.
inline RailAgreement agree(const RailTerms& one, const RailTerms& other, size_t lanes_most) {
  RailAgreement both;
  both.path_class = classify(one, other);
  const bool isolated = one.mode == RailMode::isolated || other.mode == RailMode::isolated;
  // SUP of one host is none of what another one has merged.
  const bool alike = (one.mode == RailMode::balanced) == (other.mode == RailMode::balanced) &&
                     one.mode != RailMode::single && other.mode != RailMode::single;
  if (!alike || (isolated && both.path_class == PathClass::inter_island)) {
    return both;
  }
  const size_t rails = std::min<size_t>({one.rails, other.rails, device_rails_max, lanes_most + 1});
  both.rails = static_cast<uint8_t>(rails == 0 ? 0 : rails - 1);
  if (both.rails != 0) {
    both.lanes = static_cast<uint8_t>(std::clamp<size_t>(
        std::min(one.lanes, other.lanes), 1, std::max<size_t>(lanes_most / both.rails, 1)));
  }
  return both;
}

/// In which order the lanes of a connection serve (ha/serving_set.h).
struct RailRanks {
  uint8_t first = 0;    ///< SOUT
  uint8_t others = 0;   ///< SUP
  uint8_t shadows = 1;  ///< and up
  bool operator==(const RailRanks&) const = default;
};

/// Where isolated hosts have SUP between them, SOUT stands by.
inline RailRanks ranks_of(RailMode mode, const RailAgreement& agreed) {
  return mode == RailMode::isolated && agreed.rails != 0 ? RailRanks{1, 0, 2} : RailRanks{};
}

/// The receiver's clear-to-sends take SUP (seeds/000, 3.3); in all other cases the first rail.
inline bool announces_on_others(RailMode mode, const RailAgreement& agreed) {
  return mode == RailMode::isolated && agreed.rails != 0;
}

}  // namespace nccl_ha::ha
