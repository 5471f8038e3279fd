#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "ha/shadow.h"

namespace nccl_ha::ha {
namespace {

const std::string root = "/sys/devices/pci0000:00";

Rail rail(uint16_t number, uint8_t subnet, uint8_t distance = 0, bool primary = false) {
  Rail one;
  one.kind = 2;
  one.number = number;
  one.primary = primary;
  one.distance = distance;
  one.family = 4;
  one.prefix_len = 24;
  one.address = {10, 0, subnet, static_cast<uint8_t>(number + 1)};
  return one;
}

TEST(Shadow, DistanceIsTheWayThroughTheTree) {
  const std::string nic = root + "/0000:00:01.0/0000:02:00.0/0000:03:00.0";
  EXPECT_EQ(pci_distance(nic, nic), 0);
  // The other port of one card, a card behind the same switch, and one behind the next switch.
  const uint8_t port = pci_distance(nic, root + "/0000:00:01.0/0000:02:00.0/0000:03:00.1");
  const uint8_t near = pci_distance(nic, root + "/0000:00:01.0/0000:02:01.0/0000:04:00.0");
  const uint8_t far = pci_distance(nic, root + "/0000:00:02.0/0000:05:00.0/0000:06:00.0");
  EXPECT_LT(port, near);
  EXPECT_LT(near, far);
  EXPECT_LT(far, pci_far);
  EXPECT_EQ(pci_distance(nic, "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"), pci_far)
      << "another root complex";
  EXPECT_EQ(pci_distance(nic, ""), pci_far) << "no PCI device";
  EXPECT_EQ(pci_distance(nic, root + "//0000:00:01.0/0000:02:00.0/0000:03:00.0/"), 0);
}

TEST(Shadow, ThePairThatSharesNothingWithThePrimariesIsBest) {
  const std::vector<Rail> local{rail(0, 0, 0, true), rail(1, 1, 4)};
  const std::vector<Rail> remote{rail(0, 0, 0, true), rail(1, 1, 4)};
  const auto ranked = rank_shadows(local, remote);
  ASSERT_FALSE(ranked.empty());
  EXPECT_EQ(ranked.front(), (RailPair{1, 1}));
  for (const RailPair& pair : ranked) {
    EXPECT_FALSE(local[pair.local].primary && remote[pair.remote].primary);
  }
}

TEST(Shadow, NearnessDecidesAmongEquals) {
  const std::vector<Rail> local{rail(0, 0, 0, true), rail(1, 1, 8), rail(2, 2, 4), rail(3, 3, 6)};
  std::vector<Rail> remote = local;
  EXPECT_EQ(rank_shadows(local, remote).front(), (RailPair{2, 2}));
  // On the other host that one is far away: together the third is nearer.
  remote[2].distance = 9;
  EXPECT_EQ(rank_shadows(local, remote).front(), (RailPair{3, 3}));
}

TEST(Shadow, AnotherSwitchIsPreferredAtEqualDistance) {
  // Number 1 is in the primary's subnet, number 2 is not.
  const std::vector<Rail> local{rail(0, 0, 0, true), rail(1, 0, 4), rail(2, 2, 4)};
  EXPECT_EQ(rank_shadows(local, local).front(), (RailPair{2, 2}));
}

TEST(Shadow, EqualDevicesBackEachOtherUpInTurn) {
  // Eight devices that are all alike: each is the shadow of one other.
  std::array<int, 8> used{};
  for (uint16_t primary = 0; primary < 8; ++primary) {
    std::vector<Rail> rails;
    for (uint16_t number = 0; number < 8; ++number) {
      rails.push_back(
          rail(number, static_cast<uint8_t>(number), number == primary ? 0 : 4, number == primary));
    }
    const RailPair best = rank_shadows(rails, rails).front();
    EXPECT_EQ(best.local, best.remote) << "one rail";
    ++used[best.local];
  }
  for (const int times : used) {
    EXPECT_EQ(times, 1);
  }
}

TEST(Shadow, KindsAndFamiliesDoNotMix) {
  std::vector<Rail> local{rail(0, 0, 0, true), rail(1, 1, 4)};
  std::vector<Rail> remote = local;
  remote[1].kind = 1;
  EXPECT_EQ(rank_shadows(local, remote).front(), (RailPair{1, 0})) << "half a detour";
  remote[1] = rail(1, 1, 4);
  remote[1].family = 6;
  for (const RailPair& pair : rank_shadows(local, remote)) {
    EXPECT_EQ(local[pair.local].family, remote[pair.remote].family);
  }
}

TEST(Shadow, AnotherFabricComesAfterTheOwnAndBeforeASharedEnd) {
  // Two RDMA ports, and a plain interface that is as near as can be.
  std::vector<Rail> local{rail(0, 0, 0, true), rail(1, 1, 9), rail(2, 2, 0)};
  local[2].kind = 1;
  const auto ranked = rank_shadows(local, local);
  ASSERT_GE(ranked.size(), 3U);
  EXPECT_EQ(ranked[0], (RailPair{1, 1}));
  EXPECT_EQ(ranked[1], (RailPair{2, 2}));
  local.erase(local.begin() + 1);
  EXPECT_EQ(rank_shadows(local, local), (std::vector<RailPair>{{1, 1}}));
}

/// A ring: the primaries on one cable, each host's other NIC on a cable to somebody else, and paths
/// over other hosts, which have no address.
TEST(Shadow, WhereOtherHostsLeadThereNoRouterDoes) {
  std::vector<Rail> local{rail(0, 0, 0, true), rail(1, 1)};
  std::vector<Rail> remote{rail(0, 0, 0, true), rail(1, 2)};
  EXPECT_EQ(rank_shadows(local, remote).front(), (RailPair{1, 1})) << "there may be a router";
  Rail relayed = rail(60000, 0, pci_far);
  relayed.kind = 4;
  relayed.family = 0;
  local.push_back(relayed);
  EXPECT_EQ(rank_shadows(local, remote).front(), (RailPair{1, 1})) << "not both have them";
  remote.push_back(relayed);
  EXPECT_EQ(rank_shadows(local, remote), (std::vector<RailPair>{{2, 2}}));
  local.push_back(rail(3, 3));
  remote.push_back(rail(4, 3));
  EXPECT_EQ(rank_shadows(local, remote), (std::vector<RailPair>{{3, 3}, {2, 2}}))
      << "a cable comes first";
}

TEST(Shadow, LinkLocalNetworksAreNotTakenForOneWhereOtherHostsLeadThere) {
  std::vector<Rail> rails{rail(0, 0, 0, true), rail(1, 1)};
  for (Rail& one : rails) {
    one.family = 6;
    one.prefix_len = 64;
    one.address = {0xFE, 0x80};
  }
  EXPECT_EQ(rank_shadows(rails, rails).front(), (RailPair{1, 1}));
  Rail relayed = rail(60000, 0, pci_far);
  relayed.kind = 4;
  relayed.family = 0;
  rails.push_back(relayed);
  EXPECT_EQ(rank_shadows(rails, rails), (std::vector<RailPair>{{2, 2}}));
}

TEST(Shadow, ASingleNicOnBothSidesHasNone) {
  const std::vector<Rail> one{rail(0, 0, 0, true)};
  EXPECT_TRUE(rank_shadows(one, one).empty());
  EXPECT_TRUE(rank_shadows(one, {}).empty());
  EXPECT_TRUE(rank_shadows({}, one).empty());
}

TEST(Shadow, InfiniBandHasNoAddressesToCompare) {
  std::vector<Rail> local{rail(0, 0, 0, true), rail(1, 1, 4)};
  for (Rail& one : local) {
    one.family = 0;
    one.address = {};
  }
  EXPECT_EQ(rank_shadows(local, local).front(), (RailPair{1, 1}));
}

/// Another address of the same NIC.
Rail also(Rail one, uint8_t family, std::array<uint8_t, 16> address, uint8_t prefix_len) {
  one.family = family;
  one.prefix_len = prefix_len;
  one.address = address;
  return one;
}

const std::array<uint8_t, 16> bridge{172, 17, 0, 1};
std::array<uint8_t, 16> link_local_v6(uint8_t last) {
  std::array<uint8_t, 16> address{0xFE, 0x80};
  address[15] = last;
  return address;
}

/// As the bridges of containers have.
TEST(Shadow, AnAddressThatBothHostsHaveIsNoWayBetweenThem) {
  std::vector<Rail> local{rail(0, 0, 0, true), also(rail(1, 9), 4, bridge, 16)};
  std::vector<Rail> remote{rail(0, 0, 0, true), also(rail(1, 9), 4, bridge, 16)};
  remote[0].address[3] = 77;
  EXPECT_TRUE(rank_shadows(local, remote).empty());
  for (std::vector<Rail>* rails : {&local, &remote}) {
    rails->push_back(also(rails->back(), 6, link_local_v6(1), 64));
  }
  EXPECT_TRUE(rank_shadows(local, remote).empty()) << "of whatever family";
  remote.push_back(rail(2, 3));
  for (const RailPair& pair : rank_shadows(local, remote)) {
    EXPECT_EQ(pair.local, 0U) << "nor to another address of the peer's";
  }
}

TEST(Shadow, TwoProcessesOfOneHostHaveAllTheirAddressesInCommon) {
  std::vector<Rail> local{rail(0, 0, 0, true), rail(1, 1), rail(2, 2)};
  std::vector<Rail> remote = local;
  remote[0].primary = false;
  remote[1].primary = true;
  EXPECT_EQ(rank_shadows(local, remote).front(), (RailPair{2, 2}));
}

TEST(Shadow, OfTheAddressesOfTwoNicsThoseInOneSubnetComeFirstAndLinkLocalOnesLast) {
  for (const bool v4 : {true, false}) {
    const auto last = [&](uint8_t host) {
      return v4 ? std::array<uint8_t, 16>{169, 254, 3, host} : link_local_v6(host);
    };
    const auto host = [&](uint8_t number, uint8_t other_subnet) {
      const Rail nic = rail(1, 1);
      std::vector<Rail> rails{
          rail(0, 0, 0, true), also(nic, v4 ? 4 : 6, last(number), v4 ? 16 : 64),
          also(nic, 4, {10, 7, other_subnet, number}, 24), also(nic, 4, {10, 8, 8, number}, 24)};
      rails[0].address[3] = number;
      return rails;
    };
    const auto ranked = rank_shadows(host(1, 1), host(2, 2));
    const auto place = [&](size_t local, size_t remote) {
      return std::find(ranked.begin(), ranked.end(), RailPair{local, remote}) - ranked.begin();
    };
    EXPECT_EQ(place(3, 3), 0) << "one subnet";
    EXPECT_LT(place(2, 2), place(1, 1)) << "a router may lead there";
    EXPECT_LT(static_cast<size_t>(place(1, 1)), ranked.size());
  }
}

TEST(Shadow, LinkLocalAddressesComeAfterTheOthersOfFartherNics) {
  const auto host = [](uint8_t number) {
    std::vector<Rail> rails{rail(0, 0, 0, true), also(rail(1, 1, 2), 6, link_local_v6(number), 64),
                            rail(1, 1, 2), rail(2, 2, 8)};
    for (Rail& one : rails) {
      one.address[3] = number;
    }
    return rails;
  };
  const auto ranked = rank_shadows(host(1), host(2));
  ASSERT_GE(ranked.size(), 3U);
  EXPECT_EQ(ranked[0], (RailPair{2, 2}));
  EXPECT_EQ(ranked[1], (RailPair{3, 3}));
}

TEST(Shadow, ADeviceThatHasComeBackInPlaceOfThePrimarysSharesNoEnd) {
  const auto datagrams = [] {
    Rail other = rail(9, 9, pci_far);
    other.kind = 7;
    return other;
  };
  std::vector<Rail> local{rail(0, 0, 0, true), rail(1, 1, 4), datagrams()};
  std::vector<Rail> remote = local;
  for (size_t i = 0; i < remote.size(); ++i) {
    remote[i].address[3] = 2;
    local[i].address[3] = 1;
  }
  EXPECT_FALSE(first_is_over(local));
  const std::vector<Rail> before = local;
  local.push_back(local[0]);
  local[3].number = Rail::first_returned + 5;
  local[3].primary = false;
  EXPECT_TRUE(first_is_over(local));
  const auto place = [](const std::vector<RailPair>& ranked, const RailPair& pair) {
    return std::find(ranked.begin(), ranked.end(), pair) - ranked.begin();
  };
  for (const bool here : {true, false}) {
    const auto ranked = here ? rank_shadows(local, remote) : rank_shadows(remote, local);
    const RailPair back = here ? RailPair{3, 0} : RailPair{0, 3};
    EXPECT_LT(place(ranked, back), place(ranked, {2, 2})) << "datagrams come last";
    EXPECT_LT(place(ranked, {2, 2}), static_cast<ptrdiff_t>(ranked.size()));
  }
  // Another one that has come back leaves the first paths as they are.
  local[3] = before[1];
  local[3].number = Rail::first_returned + 1;
  EXPECT_FALSE(first_is_over(local));
  // Nor does one that a later connection begins at.
  local = before;
  local[0].number = Rail::first_returned;
  EXPECT_FALSE(first_is_over(local));
}

TEST(Shadow, APairSaysWhichNicsItsPlacesAre) {
  const std::vector<Rail> local{rail(0, 0, 0, true), rail(60000, 1), rail(60000, 2), rail(7, 3)};
  EXPECT_EQ(nic_of(local, 2), 1U);
  EXPECT_EQ(nic_of(local, 3), 3U);
  for (const RailPair& pair : rank_shadows(local, local)) {
    EXPECT_EQ(pair.local_nic, nic_of(local, pair.local));
    EXPECT_EQ(pair.remote_nic, nic_of(local, pair.remote));
  }
}

}  // namespace
}  // namespace nccl_ha::ha
