#include "tools/info/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "relay/shape.h"

namespace nccl_ha::tools {
namespace {

using relay::Shape;
using relay::Topology;

std::string label_of(const Topology& topology, uint32_t node, uint32_t self) {
  const std::string name = relay::label(topology.nodes()[node]);
  return node == self ? "[" + name + "]" : name;
}

/// Different neighbours.
std::vector<uint32_t> neighbours_of(const Topology& topology, uint32_t node) {
  std::vector<uint32_t> out;
  for (const relay::TopologyLink& link : topology.links(node)) {
    if (out.empty() || out.back() != link.node) {
      out.push_back(link.node);
    }
  }
  return out;
}

/// From one end of a line to the other, or once round a ring from `start`.
std::vector<uint32_t> walk(const Topology& topology, uint32_t start) {
  std::vector<uint32_t> way{start};
  uint32_t before = start;
  while (true) {
    const std::vector<uint32_t> next = neighbours_of(topology, way.back());
    const auto on = std::find_if(next.begin(), next.end(),
                                 [&](uint32_t node) { return node != before && node != start; });
    if (on == next.end()) {
      return way;
    }
    before = way.back();
    way.push_back(*on);
  }
}

std::string draw_line(const Topology& topology, uint32_t self, const std::vector<uint32_t>& nodes) {
  const auto end = std::find_if(nodes.begin(), nodes.end(),
                                [&](uint32_t node) { return topology.degree(node) <= 1; });
  std::string out = "  ";
  for (const uint32_t node : walk(topology, *end)) {
    out += (out.size() > 2 ? " --- " : "") + label_of(topology, node, self);
  }
  return out + "\n";
}

/// Two rows, the lower one backwards.
std::string draw_ring(const Topology& topology, uint32_t self) {
  const std::vector<uint32_t> way = walk(topology, self);
  const size_t columns = (way.size() + 1) / 2;
  size_t width = 1;
  for (const uint32_t node : way) {
    width = std::max(width, label_of(topology, node, self).size());
  }
  const auto cell = [&](size_t at) {
    return at < way.size() ? fmt::format("{:^{}}", label_of(topology, way[at], self), width)
                           : std::string(width, '-');
  };
  std::string upper;
  std::string lower;
  for (size_t column = 0; column < columns; ++column) {
    upper += (column > 0 ? " --- " : "  ") + cell(column);
    // With an odd number the last place below is empty: the cable goes round the corner there.
    lower += (column > 0 ? " --- " : "  ") + cell(2 * columns - 1 - column);
  }
  const size_t from = 2 + width / 2;
  const size_t to = from + (columns - 1) * (width + 5);
  std::string middle(to + 1, ' ');
  middle[from] = '|';
  middle[to] = '|';
  if (way.size() % 2 == 1) {
    lower = "  " + std::string(width + 5, '-') + lower.substr(2 + width + 5);
  }
  return upper + "\n" + middle + "\n" + lower + "\n";
}

std::string draw_list(const Topology& topology, uint32_t self, const std::vector<uint32_t>& nodes) {
  std::string out;
  for (const uint32_t node : nodes) {
    out += fmt::format("  {} ---", label_of(topology, node, self));
    for (const uint32_t other : neighbours_of(topology, node)) {
      out += " " + label_of(topology, other, self);
    }
    out += "\n";
  }
  return out;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

struct Point {
  double x = 0;
  double y = 0;
};

constexpr double svg_size = 640;

/// On a circle, in the order of a walk where there is one; the middle of a star in the middle.
std::vector<Point> places_of(const Topology& topology, uint32_t self) {
  const size_t count = topology.nodes().size();
  std::vector<uint32_t> order;
  const Shape shape = relay::shape_of(topology, self);
  if (shape == Shape::ring) {
    order = walk(topology, self);
  }
  for (uint32_t node = 0; node < count; ++node) {
    if (std::find(order.begin(), order.end(), node) == order.end()) {
      order.push_back(node);
    }
  }
  std::vector<Point> places(count, Point{svg_size / 2, svg_size / 2});
  if (shape == Shape::star) {
    std::erase_if(order, [&](uint32_t node) { return topology.degree(node) > 1; });
  }
  const double radius = svg_size / 2 - 80;
  for (size_t i = 0; i < order.size() && count > 1; ++i) {
    const double angle =
        2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(order.size());
    places[order[i]] = {svg_size / 2 + radius * std::sin(angle),
                        svg_size / 2 - radius * std::cos(angle)};
  }
  return places;
}

std::string cable_label(const Topology& topology, uint32_t one, uint32_t other) {
  size_t cables = 0;
  for (const relay::TopologyLink& link : topology.links(one)) {
    cables += link.node == other ? 1 : 0;
  }
  const uint64_t speed = topology.speed_between(one, other);
  std::string text = cables > 1 ? fmt::format("{} cables", cables) : std::string();
  if (speed > 0) {
    text += fmt::format("{}{:g} Gb/s", text.empty() ? "" : ", ", static_cast<double>(speed) / 1000);
  }
  return text;
}

}  // namespace

std::string draw_text(const Topology& topology, uint32_t self) {
  const std::vector<uint32_t> nodes = topology.component(self);
  switch (relay::shape_of(topology, self)) {
    case Shape::ring:
      return draw_ring(topology, self);
    case Shape::line:
      return draw_line(topology, self, nodes);
    case Shape::alone:
      return fmt::format("  {}\n", label_of(topology, self, self));
    case Shape::full_mesh:
      return nodes.size() == 2 ? draw_line(topology, self, nodes)
                               : draw_list(topology, self, nodes);
    case Shape::star:
    case Shape::partial:
      break;
  }
  return draw_list(topology, self, nodes);
}

std::string draw_svg(const Topology& topology, uint32_t self) {
  const std::vector<Point> places = places_of(topology, self);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{0}\" viewBox=\"0 0 {0} "
      "{0}\" font-family=\"sans-serif\" font-size=\"13\" text-anchor=\"middle\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      svg_size);
  for (uint32_t node = 0; node < places.size(); ++node) {
    for (const uint32_t other : neighbours_of(topology, node)) {
      if (other < node) {
        continue;
      }
      const Point& a = places[node];
      const Point& b = places[other];
      out += fmt::format(
          "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#567\" "
          "stroke-width=\"2\"/>\n<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#567\">{}</text>\n",
          a.x, a.y, b.x, b.y, (a.x + b.x) / 2, (a.y + b.y) / 2 - 5,
          cable_label(topology, node, other));
    }
  }
  for (uint32_t node = 0; node < places.size(); ++node) {
    const relay::TopologyNode& host = topology.nodes()[node];
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"26\" fill=\"{}\" stroke=\"#234\" "
        "stroke-width=\"{}\"/>\n<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
        places[node].x, places[node].y, host.relays ? "#dceaf7" : "#eeeeee", node == self ? 4 : 2,
        places[node].x, places[node].y + 4, escaped(relay::label(host)));
  }
  return out + "</svg>\n";
}

}  // namespace nccl_ha::tools
