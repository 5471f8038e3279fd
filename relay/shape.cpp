#include "relay/shape.h"

#include <fmt/format.h>

#include <algorithm>

namespace nccl_ha::relay {
namespace {

/// How many hosts have how many neighbours.
struct Degrees {
  size_t nodes = 0;
  size_t ones = 0;
  size_t twos = 0;
  size_t least = SIZE_MAX;
  size_t most = 0;
};

Degrees degrees_of(const Topology& topology, const std::vector<uint32_t>& nodes) {
  Degrees degrees;
  degrees.nodes = nodes.size();
  for (const uint32_t node : nodes) {
    const size_t degree = topology.degree(node);
    degrees.ones += degree == 1 ? 1 : 0;
    degrees.twos += degree == 2 ? 1 : 0;
    degrees.least = std::min(degrees.least, degree);
    degrees.most = std::max(degrees.most, degree);
  }
  return degrees;
}

std::string names_of(const Topology& topology, uint32_t node) {
  std::string names;
  std::optional<uint32_t> last;
  for (const TopologyLink& link : topology.links(node)) {
    if (last != link.node) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", label(topology.nodes()[link.node]));
    }
    last = link.node;
  }
  return names.empty() ? "none" : names;
}

std::string sight(const Topology& topology, uint32_t node, const char* wanted) {
  const size_t degree = topology.degree(node);
  return fmt::format("{} has {} neighbour{} ({}), {}", label(topology.nodes()[node]), degree,
                     degree == 1 ? "" : "s", names_of(topology, node), wanted);
}

/// Two cables to one neighbour, where a ring needs them to lead to two.
void add_doubled(const Topology& topology, uint32_t node, std::vector<std::string>& out) {
  const auto links = topology.links(node);
  for (size_t i = 1; i < links.size(); ++i) {
    if (links[i].node == links[i - 1].node && topology.degree(node) == 1) {
      out.push_back(fmt::format("{} has several cables, all to {}: move one of them",
                                label(topology.nodes()[node]),
                                label(topology.nodes()[links[i].node])));
      return;
    }
  }
}

void add_missing_pairs(const Topology& topology, const std::vector<uint32_t>& nodes,
                       std::vector<std::string>& out) {
  for (const uint32_t one : nodes) {
    for (const uint32_t other : nodes) {
      if (one < other && !topology.adjacent(one, other)) {
        out.push_back(fmt::format("no cable works between {} and {}", label(topology.nodes()[one]),
                                  label(topology.nodes()[other])));
      }
    }
  }
}

}  // namespace

std::string label(const TopologyNode& node) {
  return node.name.empty() ? text(node.id) : node.name;
}

const char* to_text(Shape shape) {
  switch (shape) {
    case Shape::alone:
      return "one host";
    case Shape::full_mesh:
      return "full mesh";
    case Shape::ring:
      return "ring";
    case Shape::line:
      return "line";
    case Shape::star:
      return "star";
    case Shape::partial:
      return "partial mesh";
  }
  return "unknown";
}

Shape shape_of(const Topology& topology, uint32_t node) {
  // All of `nodes` hang together, so that numbers of neighbours are enough to tell.
  const std::vector<uint32_t> nodes = topology.component(node);
  const Degrees degrees = degrees_of(topology, nodes);
  if (degrees.nodes == 1) {
    return Shape::alone;
  }
  if (degrees.least == degrees.nodes - 1) {
    return Shape::full_mesh;
  }
  if (degrees.twos == degrees.nodes) {
    return Shape::ring;
  }
  if (degrees.ones == 2 && degrees.twos == degrees.nodes - 2) {
    return Shape::line;
  }
  if (degrees.ones == degrees.nodes - 1 && degrees.most == degrees.nodes - 1) {
    return Shape::star;
  }
  return Shape::partial;
}

Result<std::optional<Shape>> parse_shape(std::string_view setting) {
  if (setting == "auto" || setting.empty()) {
    return std::optional<Shape>();
  }
  constexpr std::pair<std::string_view, Shape> known[] = {{"full", Shape::full_mesh},
                                                          {"ring", Shape::ring},
                                                          {"line", Shape::line},
                                                          {"star", Shape::star},
                                                          {"partial", Shape::partial}};
  for (const auto& [name, shape] : known) {
    if (setting == name) {
      return std::optional(shape);
    }
  }
  return fail(Errc::invalid_argument,
              fmt::format("HA_NCCL_MESH_TOPOLOGY={}: use auto, full, ring, line, star or partial",
                          setting));
}

std::vector<std::string> findings(const Topology& topology, uint32_t node, Shape expected) {
  const std::vector<uint32_t> nodes = topology.component(node);
  std::vector<std::string> out;
  const Shape found = shape_of(topology, node);
  const bool three = expected == Shape::ring && found == Shape::full_mesh && nodes.size() == 3;
  if (found == expected || expected == Shape::partial || three) {
    return out;
  }
  if (found == Shape::alone) {
    out.push_back(fmt::format("HA_NCCL_MESH_TOPOLOGY expects a {}, but no other host was heard",
                              to_text(expected)));
    return out;
  }
  out.push_back(fmt::format("HA_NCCL_MESH_TOPOLOGY expects a {}, but {} hosts make a {}",
                            to_text(expected), nodes.size(), to_text(found)));
  if (expected == Shape::full_mesh) {
    add_missing_pairs(topology, nodes, out);
  }
  for (const uint32_t one : nodes) {
    const size_t degree = topology.degree(one);
    if (expected == Shape::ring && degree != 2) {
      out.push_back(sight(topology, one, "in a ring it has two"));
      add_doubled(topology, one, out);
    } else if (expected == Shape::line && degree > 2) {
      out.push_back(sight(topology, one, "in a line it has two at most"));
    }
  }
  return out;
}

}  // namespace nccl_ha::relay
