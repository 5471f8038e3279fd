// Who gives way where unknown peers wait at a door, and there is no place for one more.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <ranges>
#include <tuple>

#include "runtime/base/ip_address.h"

namespace nccl_ha {

/// Where somebody comes from: an IPv4 address, or 64 bits of an IPv6 address, as one host has all
/// addresses of a network of that size.
struct Origin {
  uint8_t family = 0;
  std::array<uint8_t, 8> bytes{};
  bool operator==(const Origin&) const = default;
  bool operator<(const Origin& other) const {
    return std::tie(family, bytes) < std::tie(other.family, other.bytes);
  }

  /// Of who has no such address: one for all.
  static Origin of(const Result<sockaddr_storage>& peer) {
    const auto known = peer ? IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&*peer))
                            : Result<IpAddress>(peer.error());
    if (!known) {
      return {};
    }
    const IpAddress& address = *known;
    Origin origin{address.family, {}};
    // Link-local ones have one network, and the host in the other half.
    const auto* from = address.bytes.begin() + (address.link_local() ? 8 : 0);
    std::copy(from, from + 8, origin.bytes.begin());
    return origin;
  }
};

/// Of `waiting`, which is not empty and has those who came first first, the one to turn out for a
/// newcomer: the first of the origin that has most, so that nobody is turned out by another host's
/// crowd; where no origin has more than one, the first of all.
template <std::ranges::random_access_range Waiting>
size_t who_gives_way(const Waiting& waiting, const Origin& newcomer) {
  std::map<Origin, size_t> places{{newcomer, 1}};
  for (const auto& one : waiting) {
    ++places[one.origin];
  }
  size_t found = 0;
  for (size_t i = 1; i < waiting.size(); ++i) {
    found = places[waiting[i].origin] > places[waiting[found].origin] ? i : found;
  }
  return found;
}

}  // namespace nccl_ha
