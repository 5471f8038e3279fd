#include <gtest/gtest.h>

#include "relay/mesh_routes.h"
#include "relay/mesh_settings.h"
#include "relay/topology_file.h"

namespace nccl_ha::relay {
namespace {

std::shared_ptr<MeshView> ring_view() {
  auto view = std::make_shared<MeshView>();
  view->topology = parse_topology_file(
                       "node a 10.0.0.1\nnode b 10.0.0.2\nnode c 10.0.0.3\nnode d 10.0.0.4\n"
                       "cable a b\ncable b c\ncable c d\ncable d a\n",
                       "ring")
                       .value();
  view->self = node_id_of_name("a");
  Neighbour neighbour;
  neighbour.node = node_id_of_name("b");
  IpAddress address;
  address.bytes = {10, 0, 0, 2};
  neighbour.address.length = address.to_sockaddr(5, &neighbour.address.storage);
  view->neighbours.push_back(neighbour);
  return view;
}

TEST(MeshRoutes, GoBothWaysRoundInTurn) {
  const auto board = std::make_shared<TopologyBoard>();
  MeshRoutes routes(board, {}, 700);
  EXPECT_TRUE(routes.relays_to(node_id_of_name("c")).empty()) << "nothing is known yet";
  EXPECT_FALSE(routes.find(node_id_of_name("b")));
  board->publish(ring_view());
  const auto first = routes.relays_to(node_id_of_name("c"));
  const auto second = routes.relays_to(node_id_of_name("c"));
  ASSERT_EQ(first.size(), 1U);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_NE(first, second);
  EXPECT_EQ(routes.relays_to(node_id_of_name("c")), first);
  EXPECT_EQ(routes.relays_to(node_id_of_name("b")),
            (std::vector<NodeId>{node_id_of_name("d"), node_id_of_name("c")}))
      << "the way that is not the cable";
  EXPECT_TRUE(routes.relays_to(NodeId{1}).empty());
}

TEST(MeshRoutes, NeighboursAreAskedAtThePortOfRelayNodes) {
  const auto board = std::make_shared<TopologyBoard>();
  board->publish(ring_view());
  const MeshRoutes routes(board, {}, 700);
  const auto next = routes.find(node_id_of_name("b"));
  ASSERT_TRUE(next);
  EXPECT_EQ(next->relay.port(), 700);
  EXPECT_EQ(next->local.length, 0U) << "the kernel knows";
  EXPECT_FALSE(routes.find(node_id_of_name("c")));
}

TEST(MeshRoutes, FollowWhatIsKnown) {
  const auto board = std::make_shared<TopologyBoard>();
  MeshRoutes routes(board, {}, 700);
  board->publish(ring_view());
  EXPECT_FALSE(routes.relays_to(node_id_of_name("c")).empty());
  auto cut = ring_view();
  cut->topology = parse_topology_file("node a 10.0.0.1\nnode c 10.0.0.3\n", "cut").value();
  board->publish(cut);
  EXPECT_TRUE(routes.relays_to(node_id_of_name("c")).empty());
}

TEST(MeshSettings, OfARelayNode) {
  Config config;
  config.mesh_slots = 256;
  config.mesh_store = true;
  const RelayOptions options = relay_options(config, NodeId{3});
  EXPECT_EQ(options.self, NodeId{3});
  EXPECT_EQ(options.slots_max, slots_max) << "not more than there can be";
  EXPECT_EQ(options.chunk_bytes, 65536U);
  EXPECT_TRUE(options.store);
}

}  // namespace
}  // namespace nccl_ha::relay
