// What a topology is called, and what is wrong with it where somebody expects another one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "relay/topology.h"

namespace nccl_ha::relay {

enum class Shape : uint8_t {
  alone,      ///< one host
  full_mesh,  ///< a cable between any two; also two hosts, and a ring of three
  ring,
  line,
  star,  ///< one host in the middle, four at least
  partial,
};
const char* to_text(Shape shape);

/// Of all hosts to which cables lead from `node`.  Several cables between two count as one.
Shape shape_of(const Topology& topology, uint32_t node);

/// HA_NCCL_MESH_TOPOLOGY: nullopt for "auto".
Result<std::optional<Shape>> parse_shape(std::string_view setting);

/// What keeps the hosts around `node` from being `expected`, in sentences that name hosts; empty:
/// nothing does.
std::vector<std::string> findings(const Topology& topology, uint32_t node, Shape expected);

/// Its name, or its id where it has none.
std::string label(const TopologyNode& node);

}  // namespace nccl_ha::relay
