// A flow: all that goes from one host's address to another one's, over whichever rail.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

namespace nccl_ha::ha {

/// An IP address without a port.
struct HostAddress {
  uint8_t family = 0;               ///< 4 or 6; 0: none, or any
  std::array<uint8_t, 16> bytes{};  ///< the first 4 for IPv4, network order; the rest is 0
  auto operator<=>(const HostAddress&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct Flow {
  HostAddress source;
  HostAddress destination;
  auto operator<=>(const Flow&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// Names a flow in a table of hints.  FNV-1a (Fowler, Noll, Vo) of both addresses; never 0.  It
/// finds mistakes, and keeps out nobody: who may write tables can write any.
inline uint64_t flow_hash(const Flow& flow) {
  uint64_t hash = 0xcbf29ce484222325U;
  const auto add = [&hash](uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3U; };
  for (const HostAddress* address : {&flow.source, &flow.destination}) {
    add(address->family);
    for (const uint8_t byte : address->bytes) {
      add(byte);
    }
  }
  return hash | 1U;
}

}  // namespace nccl_ha::ha
