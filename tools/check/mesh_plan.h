// Which cables join the hosts of a check, and when each is tried.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "relay/topology.h"
#include "tools/check/mesh_sheet.h"

namespace nccl_ha::tools {

struct CableEnd {
  uint32_t rank = 0;
  size_t port = 0;  ///< in its sheet
  bool operator==(const CableEnd&) const = default;
};

struct MeshCable {
  std::array<CableEnd, 2> ends;  ///< the lower rank first
  /// Both ends hear each other.  Else there should be a cable: the ends have a network in common,
  /// one hears the other, or they are what is left of a port or of two hosts.
  bool heard = false;
  std::optional<size_t> deaf;  ///< the end that does not hear the other one, which hears it
};

struct MeshPlan {
  /// Three hosts or more, joined by cables only.  Else nothing here is of use.
  bool is_mesh = false;
  std::vector<MeshCable> cables;
  /// What all hosts know, with the hosts that will relay for a job.
  relay::Topology topology;
  std::vector<std::optional<uint32_t>> nodes;  ///< by rank, in the topology
  std::vector<std::vector<size_t>> rounds;     ///< cables to try; each host has one in a round
};

/// Sheets by rank; all ranks make the same plan.  Pure.
MeshPlan plan_mesh(const std::vector<MeshSheet>& sheets);

/// The interfaces at both ends, as in to-h2/to-h1.
std::string cable_name(const MeshCable& cable, const std::vector<MeshSheet>& sheets);

/// Both ends have networks, and none in common.
bool networks_apart(const MeshPort& one, const MeshPort& other);

}  // namespace nccl_ha::tools
