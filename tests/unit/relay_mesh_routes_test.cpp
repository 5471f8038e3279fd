#include <gtest/gtest.h>

#include "relay/first_told.h"
#include "relay/mesh_routes.h"
#include "relay/mesh_settings.h"
#include "relay/piece_size.h"
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

std::shared_ptr<MeshView> view_of(const char* cables) {
  auto view = ring_view();
  view->topology =
      parse_topology_file(std::string("node a 10.0.0.1\nnode b 10.0.0.2\nnode c 10.0.0.3\n"
                                      "node d 10.0.0.4\nnode e 10.0.0.5\n") +
                              cables,
                          "view")
          .value();
  return view;
}

const NodeId host_b = node_id_of_name("b");
const NodeId host_c = node_id_of_name("c");
const NodeId host_d = node_id_of_name("d");

TEST(MeshRoutes, ConnectionsBeginBothWaysRoundInTurn) {
  const auto board = std::make_shared<TopologyBoard>();
  MeshRoutes routes(board, {}, 700);
  EXPECT_TRUE(routes.relays_to(host_c, {}).empty()) << "nothing is known yet";
  EXPECT_FALSE(routes.find(host_b));
  board->publish(ring_view());
  const auto first = routes.relays_to(host_c, {1, 0});
  const auto second = routes.relays_to(host_c, {2, 0});
  ASSERT_EQ(first.size(), 1U);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_NE(first, second);
  EXPECT_EQ(routes.relays_to(host_c, {3, 0}), first);
  EXPECT_EQ(routes.relays_to(host_c, {1, 0}), first) << "a connection keeps to its way";
  EXPECT_EQ(routes.relays_to(host_c, {1, 1}), second) << "and its other way is the other one";
  EXPECT_EQ(routes.relays_to(host_b, {1, 0}), (std::vector<NodeId>{host_d, host_c}))
      << "the way that is not the cable";
  EXPECT_TRUE(routes.relays_to(host_b, {1, 1}).empty()) << "there is no third one";
  EXPECT_TRUE(routes.relays_to(NodeId{1}, {1, 0}).empty());
  EXPECT_TRUE(routes.relays_to(host_c, {1, ways_max}).empty());
}

TEST(MeshRoutes, AWayThatIsLostWaitsForItsHostWhileTheOtherOneWorks) {
  const auto board = std::make_shared<TopologyBoard>();
  MeshRoutes routes(board, {}, 700);
  board->publish(ring_view());
  const auto first = routes.relays_to(host_c, {1, 0});
  const auto second = routes.relays_to(host_c, {1, 1});
  const bool over_b = first.front() == host_b;
  board->publish(view_of(over_b ? "cable c d\ncable d a\n" : "cable a b\ncable b c\n"));
  EXPECT_TRUE(routes.relays_to(host_c, {1, 0}).empty());
  EXPECT_EQ(routes.relays_to(host_c, {1, 1}), second);
  EXPECT_EQ(routes.relays_to(host_c, {2, 0}), second) << "a new connection takes what there is";
  EXPECT_TRUE(routes.relays_to(host_c, {2, 1}).empty());
  board->publish(ring_view());
  EXPECT_EQ(routes.relays_to(host_c, {1, 0}), first);
  EXPECT_EQ(routes.relays_to(host_c, {2, 1}), first);
}

TEST(MeshRoutes, AWayThatIsLostTakesAThirdHostIfThereIsOne) {
  const auto board = std::make_shared<TopologyBoard>();
  MeshRoutes routes(board, {}, 700);
  board->publish(view_of("cable a b\ncable b c\ncable a d\ncable d c\n"));
  const auto first = routes.relays_to(host_c, {1, 0});
  ASSERT_FALSE(routes.relays_to(host_c, {1, 1}).empty());
  board->publish(view_of(first.front() == host_b ? "cable a d\ncable d c\ncable a e\ncable e c\n"
                                                 : "cable a b\ncable b c\ncable a e\ncable e c\n"));
  EXPECT_EQ(routes.relays_to(host_c, {1, 0}), (std::vector<NodeId>{node_id_of_name("e")}));
}

TEST(MeshRoutes, AWayThatAHostRefusesGivesWayToOneOverAnother) {
  const auto board = std::make_shared<TopologyBoard>();
  MeshRoutes routes(board, {}, 700);
  board->publish(view_of("cable a b\ncable b d\ncable b e\ncable d c\ncable e c\n"));
  const auto first = routes.relays_to(host_c, {1, 0});
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(routes.relays_to(host_c, {1, 0}), first);
  routes.refused(host_c, {1, 0});
  const auto second = routes.relays_to(host_c, {1, 0});
  ASSERT_EQ(second.size(), 2U);
  EXPECT_EQ(second.front(), first.front()) << "the same first host";
  EXPECT_NE(second.back(), first.back());
  routes.refused(host_c, {1, 0});
  EXPECT_EQ(routes.relays_to(host_c, {1, 0}), first) << "perhaps it has room again";
  board->publish(view_of("cable a b\ncable b d\ncable d c\n"));
  ASSERT_EQ(routes.relays_to(host_c, {2, 0}).size(), 2U);
  routes.refused(host_c, {2, 0});
  EXPECT_EQ(routes.relays_to(host_c, {2, 0}).size(), 2U) << "there is no other one";
}

/// Three equally short ways to c: two over b, and one over d.
const char* const three_ways =
    "node f 10.0.0.6\nnode g 10.0.0.7\ncable a b\ncable b f\ncable e c\ncable f c\n"
    "cable a d\ncable d g\ncable g c\n";
const char* const cable_to_e = "cable b e\n";

std::shared_ptr<MeshView> view_of_three_ways() {
  return view_of((std::string(three_ways) + cable_to_e).c_str());
}

const std::vector<NodeId> over_e{host_b, node_id_of_name("e")};
const std::vector<NodeId> over_f{host_b, node_id_of_name("f")};
const std::vector<NodeId> over_g{host_d, node_id_of_name("g")};

/// A connection whose first way was told as that over e.
uint64_t connection_over_e(MeshRoutes& routes) {
  uint64_t connection = 1;
  while (connection < 9 && routes.relays_to(host_c, {connection, 0}) != over_e) {
    ++connection;
  }
  EXPECT_LT(connection, 9U) << "none in turn";
  return connection;
}

TEST(MeshRoutes, WhatWasRefusedComesAgainWhenAllOthersWereTheOldestFirst) {
  const auto board = std::make_shared<TopologyBoard>();
  MeshRoutes routes(board, {}, 700);
  board->publish(view_of_three_ways());
  const Way way{connection_over_e(routes), 0};
  std::vector<std::vector<NodeId>> told;
  for (int round = 0; round < 7; ++round) {
    told.push_back(routes.relays_to(host_c, way));
    ASSERT_EQ(told.back().size(), 2U) << round;
    routes.refused(host_c, way);
    routes.refused(host_c, way);  // of one attempt, twice
  }
  EXPECT_EQ(told[0].front(), host_b);
  EXPECT_EQ(told[1].front(), host_b) << "the same first host";
  EXPECT_NE(told[1], told[0]);
  EXPECT_EQ(told[2], over_g);
  for (size_t round = 3; round < told.size(); ++round) {
    EXPECT_EQ(told[round], told[round - 3]) << round;
  }
}

TEST(MeshRoutes, ARouteThatIsNoneMeanwhileIsNotRemembered) {
  const auto board = std::make_shared<TopologyBoard>();
  MeshRoutes routes(board, {}, 700);
  board->publish(view_of_three_ways());
  const Way way{connection_over_e(routes), 0};
  routes.refused(host_c, way);
  board->publish(view_of(three_ways));  // without the cable to e
  ASSERT_EQ(routes.relays_to(host_c, way), over_f);
  board->publish(view_of_three_ways());
  routes.refused(host_c, way);
  EXPECT_EQ(routes.relays_to(host_c, way), over_e) << "it is there again";
}

TEST(MeshRoutes, WhatOneWayRefusesIsNoMatterOfTheOthers) {
  const auto board = std::make_shared<TopologyBoard>();
  MeshRoutes routes(board, {}, 700);
  board->publish(view_of_three_ways());
  const uint64_t connection = connection_over_e(routes);
  ASSERT_EQ(routes.relays_to(host_c, {connection, 1}), over_g);
  std::vector<std::vector<NodeId>> told;
  for (int round = 0; round < 5; ++round) {
    told.push_back(routes.relays_to(host_c, {connection, 0}));
    ASSERT_EQ(told.back().size(), 2U) << round;
    EXPECT_EQ(told.back().front(), host_b) << "the other way keeps to d";
    EXPECT_TRUE(round == 0 || told.back() != *(told.end() - 2)) << round;
    routes.refused(host_c, {connection, 0});
    EXPECT_EQ(routes.relays_to(host_c, {connection, 1}), over_g);
  }
  routes.refused(host_c, {connection, 1});
  EXPECT_EQ(routes.relays_to(host_c, {connection, 1}), over_g) << "there is no other one";
}

TEST(MeshRoutes, AConnectionWithoutASecondWayTakesAny) {
  const auto board = std::make_shared<TopologyBoard>();
  MeshRoutes routes(board, {}, 700);
  board->publish(ring_view());
  const auto first = routes.relays_to(host_c, {1, 0});
  board->publish(
      view_of(first.front() == host_b ? "cable c d\ncable d a\n" : "cable a b\ncable b c\n"));
  EXPECT_EQ(routes.relays_to(host_c, {1, 0}),
            (std::vector<NodeId>{first.front() == host_b ? host_d : host_b}));
}

TEST(MeshRoutes, WithoutASplitAllBeginOneWayRound) {
  const auto board = std::make_shared<TopologyBoard>();
  RouteOptions options;
  options.split = false;
  MeshRoutes routes(board, options, 700);
  board->publish(ring_view());
  const auto first = routes.relays_to(host_c, {1, 0});
  EXPECT_EQ(routes.relays_to(host_c, {2, 0}), first);
  EXPECT_NE(routes.relays_to(host_c, {2, 1}), first);
}

TEST(MeshRoutes, TellHowAHostIsReached) {
  using Reach = MeshRoutes::Reach;
  const auto board = std::make_shared<TopologyBoard>();
  RouteOptions options;
  options.relays_max = 1;
  MeshRoutes routes(board, options, 700);
  const auto host = [](uint8_t number) {
    IpAddress address;
    address.bytes = {10, 0, 0, number};
    return std::vector<IpAddress>{address};
  };
  EXPECT_EQ(routes.reach(host(2)), Reach::unknown);
  EXPECT_FALSE(routes.self());
  board->publish(view_of("cable a b\ncable b c\ncable c d\n"));
  EXPECT_EQ(routes.self(), node_id_of_name("a"));
  EXPECT_EQ(routes.reach(host(1)), Reach::itself);
  EXPECT_EQ(routes.reach(host(2)), Reach::cable);
  EXPECT_EQ(routes.reach(host(3)), Reach::relays);
  EXPECT_EQ(routes.reach(host(4)), Reach::none) << "more hosts in between than are allowed";
  EXPECT_EQ(routes.reach(host(5)), Reach::none) << "no cable";
  EXPECT_EQ(routes.reach(host(9)), Reach::unknown);
}

TEST(MeshRoutes, TellOverHowManyWaysLoadGoesAtOnce) {
  IpAddress there;
  there.bytes = {10, 0, 0, 3};
  const auto ways = [&](const char* cables, const RouteOptions& options) {
    const auto board = std::make_shared<TopologyBoard>();
    board->publish(view_of(cables));
    return MeshRoutes(board, options, 700).ways({there});
  };
  RouteOptions alone;
  alone.split = false;
  RouteOptions detour;
  detour.detour_max = 1;
  const char* ring = "cable a b\ncable b c\ncable c d\ncable d a\n";
  EXPECT_EQ(ways(ring, {}), 2U);
  EXPECT_EQ(ways(ring, alone), 1U) << "HA_NCCL_MESH_RING_SPLIT=0";
  const char* five = "cable a b\ncable b c\ncable c d\ncable d e\ncable e a\n";
  EXPECT_EQ(ways(five, {}), 1U) << "the other way round is longer";
  EXPECT_EQ(ways(five, detour), 2U);
  EXPECT_EQ(ways("cable a b\ncable b c\n", {}), 1U);
  EXPECT_EQ(ways("cable a c\ncable a b\ncable b c\n", detour), 1U) << "a cable leads there";
  EXPECT_EQ(ways("cable a b\ncable b d\ncable b e\ncable d c\ncable e c\n", {}), 1U)
      << "both begin with the same host";
  EXPECT_EQ(ways("cable a b\n", {}), 1U) << "nothing leads there";
}

TEST(MeshRoutes, TwoCablesToANeighbourTakeTurns) {
  const auto board = std::make_shared<TopologyBoard>();
  auto view = ring_view();
  view->neighbours.push_back(view->neighbours.front());
  IpAddress other;
  other.bytes = {10, 0, 1, 2};
  view->neighbours.back().address.length =
      other.to_sockaddr(5, &view->neighbours.back().address.storage);
  board->publish(view);
  const MeshRoutes routes(board, {}, 700);
  const auto one = routes.find(host_b);
  const auto two = routes.find(host_b);
  ASSERT_TRUE(one && two);
  EXPECT_FALSE(one->relay == two->relay);
  EXPECT_TRUE(routes.find(host_b)->relay == one->relay);
}

TEST(MeshRoutes, ANeighbourIsAtItsOwnAddressesOnly) {
  auto board = std::make_shared<TopologyBoard>();
  const auto view = ring_view();
  view->neighbours[0].interface = 4;
  IpAddress heard = *parse_address("fe80::2");
  view->neighbours[0].addresses.push_back(heard);
  IpAddress untold;
  untold.bytes = {10, 0, 0, 9};
  view->neighbours[0].address.length = untold.to_sockaddr(5, &view->neighbours[0].address.storage);
  board->publish(view);
  const MeshRoutes routes(board, {}, 18740);
  IpAddress told;
  told.bytes = {10, 0, 0, 2};
  EXPECT_TRUE(routes.is_at(host_b, told)) << "it tells so itself";
  EXPECT_TRUE(routes.is_at(host_b, untold)) << "it is heard from there";
  heard.scope_id = 4;
  EXPECT_TRUE(routes.is_at(host_b, heard));
  heard.scope_id = 5;
  EXPECT_FALSE(routes.is_at(host_b, heard)) << "on another cable";
  EXPECT_FALSE(routes.is_at(host_d, told));
  told.bytes = {10, 0, 0, 4};
  EXPECT_FALSE(routes.is_at(host_b, told)) << "that is another host";
  EXPECT_FALSE(routes.is_at(host_d, told)) << "no neighbour";
}

TEST(MeshRoutes, NeighboursAreAskedAtThePortOfRelayNodes) {
  const auto board = std::make_shared<TopologyBoard>();
  board->publish(ring_view());
  const MeshRoutes routes(board, {}, 700);
  const auto next = routes.find(host_b);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->relay.port(), 700);
  EXPECT_EQ(next->local.length, 0U) << "the kernel knows";
  EXPECT_FALSE(routes.find(host_c));
}

TEST(MeshRoutes, FollowWhatIsKnown) {
  const auto board = std::make_shared<TopologyBoard>();
  MeshRoutes routes(board, {}, 700);
  board->publish(ring_view());
  EXPECT_FALSE(routes.relays_to(host_c, {}).empty());
  auto cut = ring_view();
  cut->topology = parse_topology_file("node a 10.0.0.1\nnode c 10.0.0.3\n", "cut").value();
  board->publish(cut);
  EXPECT_TRUE(routes.relays_to(host_c, {}).empty());
}

TEST(MeshSettings, OfARelayNode) {
  Config config;
  config.mesh_slots = 256;
  config.mesh_store = true;
  const RelayOptions options = relay_options(config, NodeId{3});
  EXPECT_EQ(options.self, NodeId{3});
  EXPECT_EQ(options.slots_max, slots_max) << "not more than there can be";
  EXPECT_EQ(options.chunk_bytes, 59904U);
  EXPECT_TRUE(options.store);
}

TEST(MeshSettings, PiecesFillRunsOfDatagrams) {
  // Segments of a path over cables with that MTU, IPv6 and IPv4, and what a run of them holds
  // (runtime/fabric/datagram).
  constexpr uint32_t run_bytes_max = 65000;
  constexpr uint32_t segment_header_bytes = 64;
  for (const uint32_t mtu : {1500U, 2044U, 4200U, 9000U}) {
    for (const uint32_t headers : {48U, 28U}) {
      const uint32_t segment = (mtu - headers - segment_header_bytes) / 64 * 64;
      const uint32_t run = run_bytes_max / (segment + segment_header_bytes) * segment;
      EXPECT_LE(piece_bytes(65536) + frame_header_bytes, run) << mtu;
      EXPECT_GT(piece_bytes(65536), run / 20 * 19) << mtu << ": there is room for more";
    }
  }
  for (const uint32_t most : {1024U, 40000U, 59904U, 131072U, 1048576U}) {
    EXPECT_LE(piece_bytes(most), most);
    EXPECT_GE(piece_bytes(most), most - most / 8);
  }
}

TEST(FirstTold, APeerOfWhomOthersTellMayHaveACableOfItsOwn) {
  FirstTold told;
  IpAddress one;
  one.bytes = {10, 0, 0, 1};
  IpAddress other = one;
  other.bytes[3] = 2;
  const Instant begin = Instant{} + std::chrono::hours(1);
  EXPECT_TRUE(told.is_news({one}, begin));
  EXPECT_TRUE(
      told.is_news({one, other}, begin + FirstTold::patience - std::chrono::milliseconds(1)));
  EXPECT_FALSE(told.is_news({one, other}, begin + FirstTold::patience));
  EXPECT_TRUE(told.is_news({other}, begin + FirstTold::patience)) << "another connection's peer";
  EXPECT_FALSE(told.is_news({one}, begin + std::chrono::hours(9)));
}

}  // namespace
}  // namespace nccl_ha::relay
