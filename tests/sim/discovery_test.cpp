// What discovery costs, and how long it takes, on up to a thousand hosts.
#include <gtest/gtest.h>

#include <cstdio>

#include "relay/routes.h"
#include "tests/support/mesh_network.h"

namespace nccl_ha::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct MeshSize {
  const char* name;
  size_t hosts;
  size_t further_cables;  ///< beside the ring, between any two
};

std::ostream& operator<<(std::ostream& out, const MeshSize& size) { return out << size.name; }

class DiscoveryCost : public ::testing::TestWithParam<MeshSize> {
 protected:
  DiscoveryCost() : network_(GetParam().hosts) {
    const MeshSize& size = GetParam();
    Random random(size.hosts);
    network_.add_hosts(size.hosts);
    for (size_t i = 0; i < size.hosts; ++i) {
      network_.add_cable(i, (i + 1) % size.hosts);
    }
    for (size_t i = 0; i < size.further_cables; ++i) {
      const size_t one = random.below(size.hosts);
      network_.add_cable(one, (one + 2 + random.below(size.hosts - 3)) % size.hosts);
    }
  }
  /// How long until all know the same and the truth.
  std::chrono::duration<double, std::milli> converge(Duration limit) {
    const Instant from = network_.now();
    EXPECT_TRUE(network_.run_until([&] { return network_.converged(); }, limit));
    return network_.now() - from;
  }
  MeshNetwork::Cost cost_since(const MeshNetwork::Cost& before) {
    MeshNetwork::Cost cost = network_.cost();
    cost.packets -= before.packets;
    cost.bytes -= before.bytes;
    return cost;
  }
  double per_host(uint64_t sum) const {
    return static_cast<double>(sum) / static_cast<double>(GetParam().hosts);
  }
  MeshNetwork network_;
};

TEST_P(DiscoveryCost, StaysWithinItsBounds) {
  const auto hosts = static_cast<double>(GetParam().hosts);
  const double cables = hosts + static_cast<double>(GetParam().further_cables);
  network_.start_all(seconds(1));
  network_.run(seconds(1));
  const auto started = converge(seconds(20));
  const MeshNetwork::Cost start = network_.cost();

  const MeshNetwork::Cost before_peace = network_.cost();
  network_.run(seconds(10));
  const MeshNetwork::Cost peace = cost_since(before_peace);

  const MeshNetwork::Cost before_cut = network_.cost();
  network_.cut(0);
  const auto lost = converge(seconds(20));
  const MeshNetwork::Cost cut = cost_since(before_cut);
  network_.cut(0, false);
  const auto regained = converge(seconds(20));
  network_.kill(GetParam().hosts / 2);
  const auto died = converge(seconds(20));

  std::printf(
      "%s: %zu hosts, %.0f cables: start %.0f ms after the last host, %.0f packets and %.0f bytes "
      "per host; at peace %.1f packets/s and %.0f bytes/s per host; a cable lost: %.0f ms, %.1f "
      "packets and %.0f bytes per host; a cable back: %.0f ms; a host dead: %.0f ms; memory %zu "
      "bytes per host\n",
      GetParam().name, GetParam().hosts, cables, started.count(), per_host(start.packets),
      per_host(start.bytes), per_host(peace.packets) / 10, per_host(peace.bytes) / 10, lost.count(),
      per_host(cut.packets), per_host(cut.bytes), regained.count(), died.count(), start.memory_max);

  const double dead_ms = 2000;
  const double hello_ms = 500;
  // A change goes over each cable at most in two milliseconds (floods_apart) and the cable's delay.
  const double across_ms = 2.1 * hosts / 2;
  EXPECT_LT(started.count(), 300 + across_ms);
  EXPECT_LT(lost.count(), dead_ms + 200 + across_ms);
  EXPECT_LT(regained.count(), hello_ms + 200 + across_ms);
  EXPECT_LT(died.count(), dead_ms + 200 + across_ms);
  // A hello for each end of a cable at its interval, up to a tenth early; and little else.
  EXPECT_LT(per_host(peace.packets) / 10, 2 * cables / hosts * 1000 / hello_ms * 1.15 + 1);
  // Every state of every host comes over every cable about once, in both directions where it meets
  // itself; a host tells of itself a few times as its neighbours come up.
  EXPECT_LT(per_host(start.bytes), 12 * hosts * 2 * cables / hosts * 110 + 20000);
  EXPECT_LT(static_cast<double>(start.memory_max), hosts * 320 + 20000);
}

std::vector<MeshSize> mesh_sizes() {
  std::vector<MeshSize> sizes{{"ring_64", 64, 0}};
#if !defined(__SANITIZE_ADDRESS__)
  // Of the same code more, for minutes.
  sizes.insert(sizes.end(),
               {{"mesh_256", 256, 256}, {"ring_1000", 1000, 0}, {"mesh_1000", 1000, 500}});
#endif
  return sizes;
}

INSTANTIATE_TEST_SUITE_P(All, DiscoveryCost, ::testing::ValuesIn(mesh_sizes()),
                         [](const auto& made) { return std::string(made.param.name); });

TEST(Routes, NoRouteOfAThousandHostsGoesRoundOrTooFar) {
  // Every host is in the table, and no
  // route has too many hops or a host twice.
  Random random(1);
  std::vector<relay::LinkState> states(1000);
  for (uint64_t i = 0; i < states.size(); ++i) {
    states[i].origin = relay::NodeId{i + 1};
  }
  const auto join = [&](size_t one, size_t other) {
    if (one != other && states[one].links.size() < relay::links_max &&
        states[other].links.size() < relay::links_max) {
      const auto first = static_cast<uint32_t>(states[one].links.size() + 1);
      const auto second = static_cast<uint32_t>(states[other].links.size() + 1);
      states[one].links.push_back({states[other].origin, first, second, 100});
      states[other].links.push_back({states[one].origin, second, first, 100});
    }
  };
  for (size_t i = 0; i < states.size(); ++i) {
    join(i, (i + 1) % states.size());
    join(i, random.below(states.size()));
  }
  const relay::Topology topology = relay::Topology::make(states);
  relay::RouteOptions options;
  options.relays_max = 8;
  const auto table = relay::RouteTable::make(topology, relay::NodeId{1}, options);
  ASSERT_EQ(table.entries().size(), 999U);
  for (const relay::RouteEntry& entry : table.entries()) {
    EXPECT_GT(entry.distance, 0U);
    EXPECT_EQ(entry.routes.empty(), entry.distance > options.relays_max + 1U);
    for (const relay::Route& route : entry.routes) {
      EXPECT_TRUE(relay::check_route(route.nodes, 0, relay::NodeId{1}, options.relays_max));
      EXPECT_EQ(route.nodes.back(), entry.destination);
    }
  }
}

}  // namespace
}  // namespace nccl_ha::test
