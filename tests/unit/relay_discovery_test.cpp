#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "relay/shape.h"
#include "tests/support/mesh_network.h"

namespace nccl_ha::test {
namespace {

using relay::Shape;
using std::chrono::milliseconds;
using std::chrono::seconds;

void add_ring(MeshNetwork& network, size_t hosts) {
  network.add_hosts(hosts);
  for (size_t i = 0; i < hosts; ++i) {
    network.add_cable(i, (i + 1) % hosts);
  }
}

bool converge(MeshNetwork& network, Duration limit) {
  return network.run_until([&] { return network.converged(); }, limit);
}

Shape seen_shape(MeshNetwork& network, size_t host) {
  const relay::Topology topology = network.host(host).topology(network.now());
  return relay::shape_of(topology, *topology.find(network.id(host)));
}

TEST(Discovery, TwoHostsKnowEachOtherAfterARoundTrip) {
  MeshNetwork network(1);
  network.add_hosts(2);
  network.add_cable(0, 1);
  network.start(0);
  network.run(milliseconds(200));
  network.start(1);
  // The first hello is answered at once; not more than that, the pause between answers and what is
  // told together.
  EXPECT_TRUE(converge(network, milliseconds(250)));
  EXPECT_EQ(network.host(0).topology(network.now()).cable_count(), 1U);
}

TEST(Discovery, ARingIsFoundAndTheLossOfACableMakesItALine) {
  MeshNetwork network(2);
  add_ring(network, 4);
  network.start_all(milliseconds(500));
  network.run(milliseconds(500));
  ASSERT_TRUE(converge(network, seconds(2)));
  EXPECT_EQ(seen_shape(network, 0), Shape::ring);
  network.cut(1);
  // Silence is noticed after the dead interval.
  ASSERT_TRUE(converge(network, network.timing.neighbours.dead + milliseconds(300)));
  EXPECT_EQ(seen_shape(network, 3), Shape::line);
  network.cut(1, false);
  ASSERT_TRUE(converge(network, network.timing.neighbours.hello + milliseconds(300)));
  EXPECT_EQ(seen_shape(network, 2), Shape::ring);
}

TEST(Discovery, ACableThatWorksOneWayIsNone) {
  MeshNetwork network(3);
  network.add_hosts(2);
  const size_t cable = network.add_cable(0, 1);
  network.start_all({});
  network.run(milliseconds(1));
  ASSERT_TRUE(converge(network, seconds(2)));
  network.cut_from(cable, 0);
  ASSERT_TRUE(converge(network, network.timing.neighbours.dead + seconds(1)));
  EXPECT_EQ(network.host(0).topology(network.now()).cable_count(), 0U);
  EXPECT_TRUE(network.host(1).neighbours().all().empty());
  ASSERT_EQ(network.host(0).neighbours().all().size(), 1U) << "heard, but it does not hear us";
  EXPECT_FALSE(network.host(0).neighbours().all()[0].two_way);
}

TEST(Discovery, WhoLeavesIsGoneAtOnceAndWhoDiesAfterTheDeadInterval) {
  MeshNetwork network(4);
  add_ring(network, 5);
  network.start_all(milliseconds(100));
  network.run(milliseconds(100));
  ASSERT_TRUE(converge(network, seconds(2)));
  network.stop(2);
  EXPECT_TRUE(converge(network, milliseconds(300)));
  network.kill(4);
  EXPECT_FALSE(converge(network, network.timing.neighbours.dead - network.timing.neighbours.hello -
                                     milliseconds(100)))
      << "nobody can know yet";
  EXPECT_TRUE(converge(network, network.timing.neighbours.hello + milliseconds(500)));
}

TEST(Discovery, AHostThatComesBackReplacesWhatItSaidBefore) {
  MeshNetwork network(5);
  add_ring(network, 4);
  network.start_all({});
  network.run(milliseconds(1));
  ASSERT_TRUE(converge(network, seconds(2)));
  for (int life = 0; life < 5; ++life) {
    network.kill(1);
    network.run(milliseconds(20));  // its neighbours have not noticed
    network.start(1);
    ASSERT_TRUE(converge(network, seconds(3))) << life;
    const auto states = network.host(3).states().decoded(network.now());
    const auto own = std::find_if(states.begin(), states.end(), [&](const relay::LinkState& one) {
      return one.origin == network.id(1);
    });
    ASSERT_NE(own, states.end());
    EXPECT_EQ(own->links.size(), 2U);
  }
}

/// As a neighbour's packet with that state of host `of`.
void tell(MeshNetwork& network, size_t from, size_t to, size_t of, uint64_t sequence) {
  relay::LinkState state;
  state.origin = network.id(of);
  state.sequence = sequence;
  state.lifetime_ms = relay::lifetime_max_ms;
  network.inject(
      to, 1,
      encode(relay::DiscoveryPacket{network.id(from), network.host(from).identity().incarnation,
                                    relay::StatesPacket{{state}}}));
}

TEST(Discovery, AHostWhoseNumbersWereUsedUpComesBack) {
  for (const uint64_t sequence : {relay::sequence_max - 1, relay::sequence_max}) {
    MeshNetwork network(9);
    add_ring(network, 4);
    network.start_all(milliseconds(100));
    network.run(milliseconds(100));
    ASSERT_TRUE(converge(network, seconds(3)));
    tell(network, 0, 1, 1, sequence);
    tell(network, 3, 0, 1, sequence);
    network.run(milliseconds(300));
    // With one number left it answers once; the next time it has to take it back.
    const Duration limit = network.timing.refresh + seconds(30);
    ASSERT_TRUE(network.run_until([&] { return network.host(1).counts().withdrawn == 1; }, limit));
    ASSERT_TRUE(network.run_until(
        [&] {
          const auto told = network.host(3).states().sequence(network.id(1));
          return told != 0 && told < relay::sequence_max && network.converged();
        },
        seconds(25)))
        << sequence;
    // And that holds.
    network.run(seconds(60));
    EXPECT_TRUE(network.converged());
    EXPECT_EQ(network.host(1).counts().withdrawn, 1U);
  }
}

TEST(Discovery, WhoIsInventedIsForgottenAndThenThereIsRoom) {
  MeshNetwork network(10);
  network.add_hosts(3);
  network.add_cable(0, 1);
  network.add_cable(1, 2);
  network.start(0);
  network.start(1);
  ASSERT_TRUE(converge(network, seconds(3)));
  for (uint64_t i = 0; i < relay::Discovery::nodes_max; ++i) {
    relay::LinkState state;
    state.origin = relay::NodeId{1'000'000 + i};
    state.sequence = 1;
    state.lifetime_ms = relay::lifetime_max_ms;
    network.inject(
        1, 1,
        encode(relay::DiscoveryPacket{network.id(0), network.host(0).identity().incarnation,
                                      relay::StatesPacket{{state}}}));
  }
  network.run(seconds(5));
  EXPECT_EQ(network.host(1).states().size(), relay::Discovery::nodes_max);
  network.start(2);
  network.run(milliseconds(relay::lifetime_max_ms) + seconds(10));
  EXPECT_TRUE(network.converged()) << "in bounded time, whoever was invented";
  EXPECT_EQ(network.host(1).states().size(), 3U);
}

TEST(Discovery, CablesInParallelAreKeptApart) {
  MeshNetwork network(6);
  network.add_hosts(2);
  network.add_cable(0, 1, 100000);
  const size_t second = network.add_cable(0, 1, 50000);
  network.start_all({});
  network.run(milliseconds(1));
  ASSERT_TRUE(converge(network, seconds(2)));
  relay::Topology topology = network.host(0).topology(network.now());
  EXPECT_EQ(topology.cable_count(), 2U);
  EXPECT_EQ(topology.degree(0), 1U);
  EXPECT_EQ(topology.speed_between(0, 1), 150000U);
  network.cut(second);
  ASSERT_TRUE(converge(network, seconds(4)));
  EXPECT_EQ(network.host(1).topology(network.now()).speed_between(0, 1), 100000U);
}

TEST(Discovery, ConvergesWhereEveryTenthPacketIsLost) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    MeshNetwork network(seed);
    network.loss = 0.1;
    add_ring(network, 12);
    network.start_all(milliseconds(100));
    network.run(milliseconds(100));
    EXPECT_TRUE(converge(network, seconds(20))) << seed;
  }
}

TEST(Discovery, WhatIsNotRenewedIsForgotten) {
  MeshNetwork network(7);
  network.timing.refresh = seconds(10);
  network.timing.lifetime = seconds(30);
  add_ring(network, 4);
  network.start_all({});
  network.run(milliseconds(1));
  ASSERT_TRUE(converge(network, seconds(2)));
  network.kill(2);
  network.run(seconds(120));
  EXPECT_EQ(network.host(0).states().size(), 3U);
  EXPECT_EQ(network.host(0).states().sequence(network.id(2)), 0U);
  EXPECT_NE(network.host(0).states().sequence(network.id(1)), 0U) << "renewed all the time";
}

TEST(Discovery, TwoPartsThatMeetTellEachOtherEverything) {
  MeshNetwork network(8);
  network.add_hosts(40);
  for (size_t i = 0; i + 1 < 40; ++i) {
    network.add_cable(i, i + 1);
  }
  network.cut(19);
  network.start_all(milliseconds(50));
  network.run(milliseconds(50));
  ASSERT_TRUE(converge(network, seconds(2)));
  EXPECT_EQ(network.host(0).states().size(), 20U);
  network.cut(19, false);
  ASSERT_TRUE(converge(network, seconds(2)));
  EXPECT_EQ(network.host(0).states().size(), 40U);
}

TEST(Discovery, GarbageAndPacketsOfNobodyChangeNothing) {
  MeshNetwork network(9);
  add_ring(network, 3);
  network.start_all({});
  network.run(milliseconds(1));
  ASSERT_TRUE(converge(network, seconds(2)));
  const uint64_t revision = network.host(0).revision();
  relay::StatesPacket states;
  states.states.push_back({relay::NodeId{99}, 1, 1000, true, "forged", {}, {}});
  network.inject(0, 1, encode(relay::DiscoveryPacket{relay::NodeId{98}, 1, states}));
  network.inject(0, 1, encode(relay::DiscoveryPacket{network.id(1), 4711, states}));
  network.inject(0, 1, {});
  EXPECT_EQ(network.host(0).counts().refused, 3U);
  EXPECT_EQ(network.host(0).revision(), revision);
  network.run(seconds(5));
  EXPECT_EQ(network.host(0).revision(), revision);
}

TEST(Discovery, MoreNeighboursThanAHelloCanNameAreCounted) {
  MeshNetwork network(10);
  network.add_hosts(1);
  network.add_hosts(1);
  network.add_cable(0, 1);
  network.start(0);
  network.run(milliseconds(1));
  for (uint64_t i = 0; i < relay::heard_max + 5; ++i) {
    relay::HelloPacket hello;
    hello.dead_ms = 1000;
    network.inject(0, 1, encode(relay::DiscoveryPacket{relay::NodeId{1000 + i}, 1, hello}));
  }
  EXPECT_EQ(network.host(0).neighbours().all().size(), relay::heard_max);
  EXPECT_EQ(network.host(0).neighbours().refused(), 5U);
  network.run(seconds(3));
  EXPECT_TRUE(network.host(0).neighbours().all().empty());
}

TEST(Discovery, RandomMeshesWithChurnConvergeAgain) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    MeshNetwork network(seed);
    network.loss = 0.01;
    const size_t hosts = 8 + random.below(57);
    network.add_hosts(hosts);
    for (size_t i = 1; i < hosts; ++i) {
      network.add_cable(i, random.below(i));
    }
    size_t cables = hosts - 1;
    for (size_t i = 0; i < hosts; ++i) {
      const size_t one = random.below(hosts);
      const size_t other = random.below(hosts);
      if (one != other) {
        network.add_cable(one, other);
        ++cables;
      }
    }
    network.start_all(milliseconds(500));
    network.run(milliseconds(500));
    for (int step = 0; step < 30; ++step) {
      const size_t host = random.below(hosts);
      if (random.chance(0.4)) {
        network.cut(random.below(cables), random.chance(0.5));
      } else if (network.on(host)) {
        random.chance(0.5) ? network.kill(host) : network.stop(host);
      } else {
        network.start(host);
      }
      network.run(milliseconds(static_cast<int64_t>(random.below(1500))));
    }
    EXPECT_TRUE(converge(network, seconds(30))) << seed;
  }
}

TEST(Discovery, EqualSeedsGiveEqualRuns) {
  MeshNetwork::Cost costs[2];
  for (MeshNetwork::Cost& cost : costs) {
    MeshNetwork network(11);
    network.loss = 0.05;
    add_ring(network, 16);
    network.start_all(milliseconds(100));
    network.run(seconds(10));
    cost = network.cost();
  }
  EXPECT_EQ(costs[0].packets, costs[1].packets);
  EXPECT_EQ(costs[0].bytes, costs[1].bytes);
}

}  // namespace
}  // namespace nccl_ha::test
