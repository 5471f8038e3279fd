// Which other NICs may replace those of a connection.  Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace nccl_ha::ha {

/// An end that a path may have: a port or interface, as its host describes it.
struct Rail {
  uint8_t kind = 0;     ///< of fabric; only equal ones can be joined
  uint16_t number = 0;  ///< the host's own; equal numbers share a device
  bool primary = false;
  uint8_t distance = 0;  ///< on the PCI tree to the host's primary
  /// 0: it has no IP address (InfiniBand), and everything of its kind is taken for reachable.
  uint8_t family = 0;
  uint8_t prefix_len = 0;
  std::array<uint8_t, 16> address{};
  bool operator==(const Rail&) const = default;

  /// Numbers from there on, below those of relayed ways, are of devices that have come back after a
  /// reset.
  static constexpr uint16_t first_returned = 30000;
  static constexpr uint16_t end_returned = 60000;
  bool returned() const { return number >= first_returned && number < end_returned; }
};

inline constexpr size_t rails_max = 24;  ///< of one host, on the wire

/// Hops from one device to the other through the switches above both, by their paths in sysfs
/// (/sys/devices/pci0000:00/0000:00:01.0/…): 0 for the same device, more when they meet higher up;
/// pci_far when they meet nowhere or one of the paths is empty.
uint8_t pci_distance(std::string_view one, std::string_view other);
inline constexpr uint8_t pci_far = 250;

/// Where the device of a place is first in its list: what places of one NIC have in common.
template <class Places>
size_t nic_of(const Places& places, size_t place) {
  size_t first = 0;
  while (places[first].number != places[place].number) {
    ++first;
  }
  return first;
}

/// Two ends, by their places in the lists.
struct RailPair {
  size_t local = 0;
  size_t remote = 0;
  size_t local_nic = local;  ///< nic_of() the place
  size_t remote_nic = remote;
  /// The places say which NICs they are.
  bool operator==(const RailPair& other) const {
    return local == other.local && remote == other.remote;
  }
};

/// A device of that host has come back in place of the primary's: first paths stay down, and share
/// no end with others any more.
bool first_is_over(std::span<const Rail> rails);

/// The pairs that may back the primaries up, best first.  A pair that shares an end with the
/// primaries dies with it, so it comes after those that share none; another fabric than the
/// primaries' is slower, so it comes after their own, and first the one that leads to everybody
/// (over other hosts: without an address at either end), where there is one: no router leads from
/// cable to cable there, so that pairs of the own fabric in different subnets, or in those of
/// link-local addresses, are left out.  A pair whose ends are in one subnet needs no router; one of
/// link-local addresses comes last, as these look alike on each cable.  Then the PCI trees decide,
/// then a subnet other than the primaries' (another switch), and then a rotation by number, so that
/// equal devices share the load of backing each other up.  An address that both hosts have (a
/// container bridge's) leads each of them to itself: it is no end, but where both are one host,
/// which has all its addresses in common with itself.  The same on every
/// host that sees the same lists.
std::vector<RailPair> rank_shadows(std::span<const Rail> local, std::span<const Rail> remote);

}  // namespace nccl_ha::ha
