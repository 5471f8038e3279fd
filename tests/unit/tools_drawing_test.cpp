#include <gtest/gtest.h>

#include "relay/topology_file.h"
#include "tools/info/drawing.h"

namespace nccl_ha::tools {
namespace {

relay::Topology mesh_of(const std::string& nodes, const std::string& cables) {
  std::string text;
  for (const char c : nodes) {
    text += std::string("node h") + c + " 10.0.0." + std::to_string(c) + "\n";
  }
  for (size_t i = 0; i + 1 < cables.size(); i += 3) {
    text += std::string("cable h") + cables[i] + " h" + cables[i + 1] + " 100000\n";
  }
  return relay::parse_topology_file(text, "mesh").value();
}

uint32_t node_of(const relay::Topology& topology, const char* name) {
  return *topology.find(relay::node_id_of_name(name));
}

TEST(Drawings, ALineGoesFromEndToEnd) {
  const auto line = mesh_of("123", "12 23");
  const std::string drawn = draw_text(line, node_of(line, "h2"));
  EXPECT_TRUE(drawn == "  h1 --- [h2] --- h3\n" || drawn == "  h3 --- [h2] --- h1\n") << drawn;
}

TEST(Drawings, ARingIsClosed) {
  const auto ring = mesh_of("1234", "12 23 34 41");
  const std::string drawn = draw_text(ring, node_of(ring, "h1"));
  const std::string one = "  [h1] ---  h2 \n   |         |\n   h4  ---  h3 \n";
  const std::string other = "  [h1] ---  h4 \n   |         |\n   h2  ---  h3 \n";
  const auto squeezed = [](std::string text) {
    std::erase(text, ' ');
    return text;
  };
  EXPECT_TRUE(squeezed(drawn) == squeezed(one) || squeezed(drawn) == squeezed(other)) << drawn;
}

TEST(Drawings, OthersAreListed) {
  const auto star = mesh_of("1234", "12 13 14");
  const std::string drawn = draw_text(star, node_of(star, "h2"));
  EXPECT_NE(drawn.find("  h1 --- "), std::string::npos) << drawn;
  EXPECT_NE(drawn.find("  [h2] --- h1\n"), std::string::npos) << drawn;
}

TEST(Drawings, SvgHasEachHostAndEachPairOnce) {
  const auto ring = mesh_of("1234", "12 12 23 34 41");
  const std::string drawn = draw_svg(ring, 0);
  const auto times = [&](const std::string& part) {
    size_t count = 0;
    for (size_t at = drawn.find(part); at != std::string::npos; at = drawn.find(part, at + 1)) {
      ++count;
    }
    return count;
  };
  EXPECT_EQ(times("<circle "), 4U);
  EXPECT_EQ(times("<line "), 4U);
  EXPECT_EQ(times("2 cables, 200 Gb/s"), 1U);
  EXPECT_EQ(times(">100 Gb/s<"), 3U);
  EXPECT_TRUE(drawn.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace nccl_ha::tools
