#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "relay/shape.h"
#include "relay/topology_file.h"
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

/// Its host may begin anew under another name, by which alone it is found then.
TEST(Discovery, WhoHasLeftIsKnownAndHasNoAddress) {
  MeshNetwork network(4);
  add_ring(network, 4);
  network.start_all({});
  network.run(milliseconds(1));
  ASSERT_TRUE(converge(network, seconds(2)));
  IpAddress own;
  own.bytes = {10, 1, 0, 2};
  network.host(2).set_addresses({own}, network.now());
  network.wake(2);
  const auto has_it = [&] {
    return relay::find_host(network.host(0).topology(network.now()), {own}).has_value();
  };
  ASSERT_TRUE(network.run_until(has_it, seconds(1)));
  network.stop(2);
  EXPECT_TRUE(network.run_until([&] { return !has_it(); }, milliseconds(300)));
  EXPECT_TRUE(network.host(0).topology(network.now()).find(network.id(2)));
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

/// What `from` says to `to` on its interface `interface`, from its own `peer_interface`.
void say_from(MeshNetwork& network, size_t from, size_t to, uint32_t interface,
              uint32_t peer_interface, decltype(relay::DiscoveryPacket::body) body) {
  const relay::Discovery::Identity& own = network.host(from).identity();
  network.inject(
      to, interface,
      encode(relay::DiscoveryPacket{own.node, own.incarnation, std::move(body), peer_interface}),
      from);
}

relay::StatesPacket empty_state_of(relay::NodeId origin, uint64_t sequence) {
  relay::LinkState state;
  state.origin = origin;
  state.sequence = sequence;
  state.lifetime_ms = relay::lifetime_max_ms;
  return {{state}};
}

/// Hosts 0, 1, 2 and 3 in a line, which know each other: the last one is to say what is not so.
/// Interface 1 of each but host 0 leads to the host before it.
void begin_line_of_four(MeshNetwork& network) {
  network.add_hosts(4);
  for (size_t i = 0; i + 1 < 4; ++i) {
    network.add_cable(i, i + 1);
  }
  network.start_all(milliseconds(100));
  network.run(milliseconds(100));
  ASSERT_TRUE(converge(network, seconds(3)));
}

uint64_t known_number(MeshNetwork& network, size_t at, size_t of) {
  return network.host(at).states().sequence(network.id(of));
}

/// Host 3 says it to host 2.
void tell(MeshNetwork& network, size_t of, uint64_t sequence) {
  say_from(network, 3, 2, 2, 1, empty_state_of(network.id(of), sequence));
}

TEST(Discovery, ANeighbourSpeaksForItself) {
  MeshNetwork network(9);
  begin_line_of_four(network);
  const uint64_t said = known_number(network, 2, 1);
  tell(network, 1, said + 7);
  EXPECT_EQ(known_number(network, 2, 1), said) << "host 1 has not said it";
  EXPECT_EQ(network.host(2).topology(network.now()).cable_count(), 3U);
  EXPECT_EQ(network.host(2).counts().hearsay, 1U);
  // It hears of that, so that hosts further away believe it again.
  EXPECT_TRUE(
      network.run_until([&] { return known_number(network, 3, 1) > said + 7; }, seconds(1)));
  EXPECT_TRUE(converge(network, seconds(3)));
}

TEST(Discovery, ANumberThatNoLifeReachesIsNotBelieved) {
  MeshNetwork network(9);
  begin_line_of_four(network);
  const uint64_t said = known_number(network, 2, 0);
  for (const uint64_t sequence : {said + relay::sequence_jump_max, relay::sequence_max}) {
    tell(network, 0, sequence);
    EXPECT_EQ(known_number(network, 2, 0), said) << sequence;
    say_from(network, 1, 0, 1, 1, empty_state_of(network.id(0), relay::sequence_max));
    network.run(seconds(2));
    EXPECT_TRUE(network.converged());
    EXPECT_LT(known_number(network, 0, 0), relay::sequence_max);
  }
}

TEST(Discovery, WhatIsSaidInAHostsNameIsOutdone) {
  MeshNetwork network(9);
  begin_line_of_four(network);
  for (int i = 0; i < 5; ++i) {
    const uint64_t said = known_number(network, 2, 0) + relay::sequence_jump_max / 2;
    tell(network, 0, said);
    EXPECT_EQ(known_number(network, 2, 0), said) << "nobody else can know";
    EXPECT_TRUE(
        network.run_until([&] { return known_number(network, 2, 0) > said; }, milliseconds(500)));
    EXPECT_TRUE(converge(network, seconds(3)));
    network.run(seconds(20));
  }
}

TEST(Discovery, OnlyWhoHearsUsIsAnswered) {
  MeshNetwork network(9);
  begin_line_of_four(network);
  const relay::NodeId outsider{4711};
  relay::HelloPacket hello;
  hello.dead_ms = 60000;
  relay::RequestPacket request;
  request.nodes.assign(relay::request_nodes_max, network.id(0));
  const auto ask = [&](int times) {
    const auto bytes = encode(relay::DiscoveryPacket{outsider, 1, request, 5});
    for (int i = 0; i < times; ++i) {
      network.inject(0, 1, bytes);
    }
  };
  network.inject(0, 1, encode(relay::DiscoveryPacket{outsider, 1, hello, 5}));
  uint64_t before = network.host(0).counts().bytes_sent;
  ask(100);
  EXPECT_EQ(network.host(0).counts().bytes_sent, before);
  hello.number = 1;
  hello.heard = {{network.id(0), network.host(0).identity().incarnation, 1}};
  network.inject(0, 1, encode(relay::DiscoveryPacket{outsider, 1, hello, 5}));
  before = network.host(0).counts().bytes_sent;
  ask(1);
  EXPECT_GT(network.host(0).counts().bytes_sent, before + 5000);
  // But no more than so much, from one interface, and nothing for another address.
  ask(2000);
  EXPECT_GT(network.host(0).counts().bytes_sent, before + relay::Discovery::answer_burst / 2);
  EXPECT_LT(network.host(0).counts().bytes_sent, before + relay::Discovery::answer_burst + 5000);
  EXPECT_GT(network.host(0).counts().withheld, 0U);
  network.run(seconds(5));
  before = network.host(0).counts().bytes_sent;
  network.inject(0, 1, encode(relay::DiscoveryPacket{outsider, 1, request, 5}), 3);
  EXPECT_EQ(network.host(0).counts().bytes_sent, before);
  EXPECT_EQ(network.host(2).topology(network.now()).cable_count(), 3U);
}

TEST(Neighbours, WhatWasRecordedBeforeARestartChangesNothing) {
  const relay::NodeId self{1};
  const relay::NodeId peer{2};
  constexpr uint32_t incarnation = 10;
  relay::Neighbours neighbours(self, incarnation, {}, 1);
  Instant now{seconds(1)};
  neighbours.set_interfaces({{1, "one", 1000}}, now);
  fabric::SocketAddress from;
  IpAddress address;
  address.bytes = {10, 0, 0, 2};
  from.length = address.to_sockaddr(1, &from.storage);
  using Change = relay::Neighbours::Change;
  const auto hears = [&](uint32_t life, uint64_t number, uint32_t ours, bool leaves = false) {
    relay::HelloPacket hello;
    hello.number = number;
    hello.dead_ms = 2000;
    hello.leaves = leaves;
    if (ours != 0) {
      hello.heard = {{self, ours, 1}};
    }
    return neighbours.on_hello(1, from, relay::DiscoveryPacket{peer, life, hello, 3}, hello, now);
  };
  EXPECT_EQ(hears(5, 40, 9), Change{}) << "it heard an earlier life of ours";
  EXPECT_EQ(hears(5, 41, incarnation), (Change{true, false}));
  for (uint64_t number = 0; number < 41; ++number) {
    EXPECT_EQ(hears(5, number, number < 20 ? 0 : 9), Change{}) << number;
    EXPECT_EQ(hears(4, number, 9), Change{}) << "of an earlier life of its own";
  }
  EXPECT_EQ(hears(5, 42, 9, true), Change{}) << "a goodbye to an earlier life";
  EXPECT_EQ(hears(4, 42, 9, true), Change{});
  ASSERT_NE(neighbours.two_way(peer), nullptr);
  EXPECT_EQ(neighbours.two_way(peer)->incarnation, 5U);
  EXPECT_EQ(hears(6, 1, 0), Change{}) << "another life that has not heard us yet";
  EXPECT_EQ(hears(6, 2, incarnation), (Change{true, true})) << "takes the place";
  EXPECT_EQ(neighbours.all().size(), 1U);
  EXPECT_EQ(hears(6, 3, incarnation, true), (Change{false, true}));
  EXPECT_TRUE(neighbours.all().empty());
}

TEST(Discovery, WhoIsInventedGivesWay) {
  MeshNetwork network(10);
  network.add_hosts(3);
  network.add_cable(0, 1);
  network.add_cable(1, 2);
  network.start(0);
  network.start(1);
  ASSERT_TRUE(converge(network, seconds(3)));
  for (uint64_t i = 0; i < relay::Discovery::nodes_max; ++i) {
    say_from(network, 0, 1, 1, 1, empty_state_of(relay::NodeId{1'000'000 + i}, 1));
  }
  network.run(seconds(5));
  EXPECT_EQ(network.host(1).states().size(), relay::Discovery::nodes_max);
  network.start(2);
  ASSERT_TRUE(network.run_until(
      [&] {
        const relay::Topology seen = network.host(0).topology(network.now());
        return seen.component(*seen.find(network.id(0))).size() == 3;
      },
      seconds(10), milliseconds(100)))
      << "a host with a cable has no room";
  EXPECT_EQ(network.host(0).states().size(), relay::Discovery::nodes_max);
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
  const uint64_t before = network.host(0).counts().refused;
  relay::StatesPacket states;
  states.states.push_back({relay::NodeId{99}, 1, 1000, true, "forged", {}, {}});
  network.inject(0, 1, encode(relay::DiscoveryPacket{relay::NodeId{98}, 1, states}));
  network.inject(0, 1, encode(relay::DiscoveryPacket{network.id(1), 4711, states}));
  network.inject(0, 1, {});
  say_from(network, 1, 0, 1, 7, states);  // on another link of host 1, and recorded there
  EXPECT_EQ(network.host(0).counts().refused, before + 4);
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

TEST(Discovery, NamesWithoutACableGiveWayToANeighbour) {
  MeshNetwork network(10);
  network.add_hosts(2);
  network.add_cable(0, 1);
  network.start(0);
  network.run(milliseconds(1));
  uint64_t name = 1000;
  const auto invent = [&] {
    for (size_t i = 0; i < relay::heard_max; ++i) {
      relay::HelloPacket hello;
      hello.dead_ms = 60000;
      network.inject(0, 1, encode(relay::DiscoveryPacket{relay::NodeId{++name}, 1, hello}));
    }
  };
  invent();
  network.start(1);
  for (int i = 0; i < 20; ++i) {
    network.run(milliseconds(100));
    invent();
  }
  ASSERT_NE(network.host(0).neighbours().two_way(network.id(1)), nullptr);
  EXPECT_TRUE(network.converged());
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
