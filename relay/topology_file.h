// A topology that somebody wrote down, for networks where discovery is not wanted.
//
//   # everything behind a # is a comment
//   node  NAME ADDRESS[/PREFIX]... [no-relay]
//   cable NAME NAME [MBIT_PER_SECOND]
//
// Names are at most 63 letters, digits, dots, hyphens and underscores; nodes come before their
// cables; several cables may lead from one host to another.
#pragma once

#include <string>
#include <string_view>

#include "relay/topology.h"
#include "runtime/base/result.h"

namespace nccl_ha::relay {

inline constexpr size_t topology_file_bytes_max = 1 << 20;
inline constexpr size_t topology_file_nodes_max = 4096;

/// `where` is put in front of errors, which name the line.
Result<Topology> parse_topology_file(std::string_view text, std::string_view where);
Result<Topology> read_topology_file(const std::string& file);

/// The host that has one of these addresses; among several the only one with a cable, as one that
/// began anew under another name may still be known by the old one.  nullopt: none, or several
/// have.
std::optional<uint32_t> find_host(const Topology& topology,
                                  const std::vector<IpAddress>& addresses);

/// Where a neighbour is reached from here: the address that has a network in common with one of
/// ours, else its first.
std::optional<IpAddress> address_towards(const TopologyNode& from, const TopologyNode& to);

}  // namespace nccl_ha::relay
