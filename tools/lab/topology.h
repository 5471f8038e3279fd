// What a lab looks like: hosts, the interfaces they have, and the links between them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha::tools::lab {

/// The index that stands for "no port".
inline constexpr size_t no_port = SIZE_MAX;

/// An interface of a host.  Addresses are from 198.18.0.0/15, which RFC 2544 sets aside for
/// measurements: no real network has them.
struct Port {
  size_t host = 0;
  std::string interface;
  std::string address;  ///< empty: none but the link-local one of IPv6
  unsigned prefix_len = 24;
  size_t link = 0;
  bool management = false;
  /// Where programs are to find that it is a PCI function: its address there and its NIC's port.
  std::string pci_address;
  std::string nic_port;
};

/// A cable.  It joins two ports, or one port and a switch.
struct Link {
  std::string name;
  std::string group;  ///< all links of a rail go by its name as well
  std::array<size_t, 2> ports{no_port, no_port};
  size_t medium = 0;  ///< links with the same number meet in one switch; a cable has its own
  bool to_switch() const { return ports[1] == no_port; }
};

/// A link as a command names it, with the directions that the command is about.  Direction 0 are
/// the frames that the host at ports[0] sends, direction 1 those that it receives.
struct LinkChoice {
  size_t link = 0;
  std::array<bool, 2> direction{true, true};
};

/// Which frames a command is about: all, or those that one host sends or receives.
struct Side {
  std::string sender;    ///< host name, or empty
  std::string receiver;  ///< host name, or empty
};

struct Topology {
  std::string name;
  std::vector<std::string> hosts;  ///< h1, h2, …
  std::vector<Port> ports;
  std::vector<Link> links;
  size_t media = 0;

  std::string management_address(size_t host) const;
  /// The host of that name; an error lists those that exist.
  Result<size_t> host(std::string_view wanted) const;
  /// The links that `wanted` names: a link, a group (rail0), or an interface (h1.rail0).
  Result<std::vector<LinkChoice>> find(std::string_view wanted, const Side& side) const;
  /// Each of two interfaces (h3.rail0, h3.rail1) gets the other's cable: it is plugged into the
  /// other's switch.  An error where one has no switch.
  Result<void> swap(std::string_view one, std::string_view other);
};

/// Makes `hosts` hosts with `rails` rails each; two hosts are joined by cables, more by a switch
/// for each rail.
Result<Topology> make_rails(size_t hosts, size_t rails);

/// Reads a topology's name: pair, rails-HxR, flat-HxR, islands[-N], ring-N, line-N, star-N,
/// mesh-N[-SEED], gb10-N, plan-ring, plan-line.
Result<Topology> parse_topology(std::string_view name);

/// The names that parse_topology() takes, for help texts: one line each.
std::string topologies_help();

}  // namespace nccl_ha::tools::lab
