// Processes that nobody told to take part in a mesh: they do where there is one, and are quiet
// elsewhere.
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>

#include "relay/job_keys.h"
#include "tests/support/mesh_network.h"

namespace nccl_ha::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<size_t> numbers(size_t from, size_t count) {
  std::vector<size_t> all(count);
  std::iota(all.begin(), all.end(), from);
  return all;
}

/// Rests, and knows of nobody.
bool is_quiet(MeshNetwork& network, size_t host) {
  return network.host(host).look().rests() && network.host(host).neighbours().all().empty();
}

class BehindASwitch : public ::testing::TestWithParam<size_t> {};

TEST_P(BehindASwitch, AHostLooksOnceAndIsQuiet) {
  MeshNetwork network(GetParam());
  network.looks = true;
  const size_t hosts = GetParam();
  network.add_hosts(hosts);
  network.add_switch(numbers(0, hosts));
  network.add_switch(numbers(0, hosts));  // two rails
  network.start_all(milliseconds(200));
  network.run(seconds(3));
  const MeshNetwork::Cost start = network.cost();
  network.run(seconds(60));
  std::printf("%zu hosts on two switches: %.2f packets and %.0f bytes per host, then %.2f\n", hosts,
              static_cast<double>(start.packets) / static_cast<double>(hosts),
              static_cast<double>(start.bytes) / static_cast<double>(hosts),
              static_cast<double>(network.cost().packets - start.packets));
  EXPECT_EQ(network.cost().packets, start.packets) << "peace costs nothing";
  // A hello by each interface, what is said to the first one that is heard, and that it is a
  // switch.
  EXPECT_LE(start.packets, 6 * hosts + 40);
  EXPECT_GE(start.packets, hosts) << "nobody looked";
  for (size_t i = 0; i < hosts; ++i) {
    EXPECT_TRUE(is_quiet(network, i)) << i;
  }
}

std::vector<size_t> switched_sizes() {
#if defined(__SANITIZE_ADDRESS__)
  return {8, 64};
#else
  return {8, 64, 1000};
#endif
}
INSTANTIATE_TEST_SUITE_P(Hosts, BehindASwitch, ::testing::ValuesIn(switched_sizes()));

class Looking : public ::testing::TestWithParam<uint64_t> {
 protected:
  void add_line(MeshNetwork& network, size_t hosts, bool closed) {
    network.looks = true;
    network.add_hosts(hosts);
    for (size_t i = 0; i + (closed ? 0 : 1) < hosts; ++i) {
      network.add_cable(i, (i + 1) % hosts);
    }
  }
  void all_take_part(MeshNetwork& network) {
    for (size_t i = 0; i < network.size(); ++i) {
      EXPECT_TRUE(network.host(i).look().takes_part()) << i;
    }
  }
};

TEST_P(Looking, HostsOnCablesFindEachOtherAsIfTheyWereToldTo) {
  for (const bool ring : {false, true}) {
    MeshNetwork network(GetParam());
    add_line(network, 3 + GetParam() % 6, ring);
    network.start_all(milliseconds(100));
    network.run(milliseconds(100));
    const Instant from = network.now();
    EXPECT_TRUE(network.run_until([&] { return network.converged(); }, seconds(3)));
    EXPECT_LE(network.now() - from, milliseconds(200));
    network.run(relay::MeshLook::settle + milliseconds(10));
    all_take_part(network);
  }
}

TEST_P(Looking, WhoComesLateWakesThoseWhoHeardNobody) {
  MeshNetwork network(GetParam());
  add_line(network, 3, false);
  network.start(0);
  network.start(2);
  network.run(seconds(30));
  EXPECT_TRUE(is_quiet(network, 0));
  const MeshNetwork::Cost quiet = network.cost();
  network.run(seconds(30));
  EXPECT_EQ(network.cost().packets, quiet.packets);
  network.start(1);
  EXPECT_TRUE(network.run_until([&] { return network.converged(); }, seconds(2)));
  network.run(relay::MeshLook::settle + milliseconds(10));
  all_take_part(network);
}

TEST_P(Looking, WhoeverSeeksWakesAllOnTheWay) {
  // Two switches that one host is on, and a line behind the second one: to whom the last host is,
  // no address of the first one leads.
  MeshNetwork network(GetParam());
  network.looks = true;
  network.add_hosts(8);
  network.add_switch(numbers(0, 4));
  network.add_switch(numbers(3, 4));
  network.add_cable(6, 7);
  network.start_all(milliseconds(50));
  network.run(seconds(5));
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_TRUE(is_quiet(network, i)) << i;
  }
  network.host(0).need(true, network.now());
  network.wake(0);
  const auto known = [&](size_t host) {
    return network.host(host).topology(network.now()).nodes().size() == 8;
  };
  EXPECT_TRUE(network.run_until([&] { return known(0) && known(7); }, seconds(3)));
  network.run(seconds(60));
  EXPECT_TRUE(known(0) && known(7)) << "as long as it seeks";
  network.host(0).need(false, network.now());
  network.run(relay::MeshLook::seek_for + seconds(2));
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_TRUE(is_quiet(network, i)) << i << ": nobody keeps the others awake";
  }
}

TEST_P(Looking, AMeshInUseIsNotPutToRestByAHostThatIsPluggedInBetween) {
  MeshNetwork network(GetParam());
  network.looks = true;
  network.add_hosts(5);
  for (size_t i = 0; i < 4; ++i) {
    network.add_cable(i, (i + 1) % 4);
  }
  for (size_t i = 0; i < 4; ++i) {
    network.start(i);
  }
  EXPECT_TRUE(network.run_until([&] { return network.converged(); }, seconds(2)));
  network.run(seconds(1));
  // Two of them have a switch as well now, with another host on it.
  network.add_switch({0, 1, 4});
  for (const size_t host : {0, 1}) {
    network.plug_again(host);
  }
  network.start(4);
  network.run(seconds(20));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(network.host(i).look().takes_part()) << i;
  }
}

TEST_P(Looking, KeysThatComeLaterAreLookedForWith) {
  MeshNetwork network(GetParam());
  add_line(network, 3, false);
  for (size_t i = 0; i < 3; ++i) {
    network.communicators[i] = {100 + i};  // of each host alone
  }
  network.start_all(milliseconds(50));
  network.run(seconds(5));
  relay::JobKeys keys;
  keys.add(7);
  uint64_t forged = 0;
  for (size_t i = 0; i < 3; ++i) {
    forged += network.host(i).seal_counts().forged;
    EXPECT_TRUE(is_quiet(network, i)) << i;
    network.host(i).set_keys(keys.current(), network.now(), relay::Discovery::KeysOf::job);
    network.wake(i);
  }
  EXPECT_TRUE(network.run_until([&] { return network.converged(); }, seconds(1)));
  for (size_t i = 0; i < 3; ++i) {
    forged -= network.host(i).seal_counts().forged;
  }
  EXPECT_EQ(forged, 0U) << "all that is said is sealed, the first answer too";
}

TEST_P(Looking, HostsOfAnotherJobAreNotHeard) {
  // A ring of six: two jobs of which each has every second host.
  MeshNetwork network(GetParam());
  add_line(network, 6, true);
  for (size_t i = 0; i < 6; ++i) {
    network.communicators[i] = {100 + i % 2};
  }
  network.start_all(milliseconds(50));
  network.run(seconds(5));
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(is_quiet(network, i)) << i;
    EXPECT_GT(network.host(i).seal_counts().forged, 0U) << "somebody spoke";
  }
}

TEST_P(Looking, NeighboursNeedOneCommunicatorInCommonWhicheverItIs) {
  // No two of them have the same ones, and each has some that nobody else has.
  MeshNetwork network(GetParam());
  const size_t hosts = 5;
  add_line(network, hosts, true);
  for (size_t i = 0; i < hosts; ++i) {
    const uint64_t next = 10 + i;
    const uint64_t last = 10 + (i + hosts - 1) % hosts;
    network.communicators[i] = {1000 + i, next, 2000 + i, last, 3000 + i};
  }
  network.start_all(milliseconds(50));
  network.run(milliseconds(50));
  EXPECT_TRUE(network.run_until([&] { return network.converged(); }, seconds(1)));
  network.run(seconds(120));
  EXPECT_TRUE(network.converged());
  all_take_part(network);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Looking, ::testing::Range<uint64_t>(1, 6));

}  // namespace
}  // namespace nccl_ha::test
