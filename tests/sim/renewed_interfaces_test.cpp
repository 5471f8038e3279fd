// Interfaces whose addresses and numbers change while connections use them.
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using std::chrono::milliseconds;
using std::chrono::seconds;

enum class Host : uint8_t { sender, receiver, both };

sim::Ip ip_of(const IpAddress& address) {
  return uint32_t{address.bytes[0]} << 24 | uint32_t{address.bytes[1]} << 16 |
         uint32_t{address.bytes[2]} << 8 | address.bytes[3];
}

class Renewed {
 protected:
  explicit Renewed(size_t rails = 2) : pair_(97, {}, config(), {.rails = rails}) {}
  static Config config() {
    Config config;
    config.shadow_paths = 1;
    config.enable_failback = true;
    config.failback_ms = 500;
    return config;
  }

  std::vector<sim::Process*> hosts_of(Host which) {
    std::vector<sim::Process*> hosts;
    if (which != Host::receiver) {
      hosts.push_back(&pair_.sender());
    }
    if (which != Host::sender) {
      hosts.push_back(&pair_.receiver());
    }
    return hosts;
  }
  /// A NIC there gets another address, and nothing moves at the one that it had, which is the
  /// host's no more if it `moves`.
  void change(size_t rail, Host which, bool moves = false) {
    for (sim::Process* host : hosts_of(which)) {
      auto list = *host->provider->interfaces();
      IpAddress& address = list[rail].addresses.front();
      const sim::Ip before = ip_of(address);
      address.bytes[2] = 77;
      list[rail].ifindex += 20;
      pair_.world().network().same_host_as(host->address, ip_of(address));
      ASSERT_NE(ip_of(address), before);
      if (moves) {
        pair_.world().network().move_address(before, ip_of(address));
      }
      pair_.world().network().vanish(before);
      host->provider->renew_interfaces(list);
    }
  }
  std::string transfer(uint64_t seed) {
    rig::TransferPlan plan;
    plan.seed = seed;
    return pair_.transfer(plan, seconds(20));
  }
  bool comes_back(uint64_t times) {
    const auto& failovers = pair_.send_channel().counters();
    return pair_.world().run_until([&] { return failovers.paths_back.get() >= times; }, seconds(5));
  }
  void cut(size_t rail) {
    sim::Link dark;
    dark.cut = true;
    pair_.set_links(dark, dark, rail);
  }

  /// Until all has arrived once nothing moves any more at the first NICs of both hosts.
  Duration stall_without_first_nics() {
    pair_.world().network().vanish(pair_.sender().addresses[0]);
    pair_.world().network().vanish(pair_.receiver().addresses[0]);
    const Instant begin = pair_.world().now();
    const uint64_t before = pair_.send_channel().counters().traffic_moves.get();
    EXPECT_EQ(transfer(1), "");
    EXPECT_GT(pair_.send_channel().counters().traffic_moves.get(), before) << "nothing was lost";
    return pair_.world().now() - begin;
  }

  static constexpr auto at_once = milliseconds(300);
  SimPair pair_;
};

class RenewedInterfaces : public testing::TestWithParam<Host>, protected Renewed {};
INSTANTIATE_TEST_SUITE_P(Hosts, RenewedInterfaces,
                         testing::Values(Host::sender, Host::receiver, Host::both));

TEST_P(RenewedInterfaces, AStandbyStandsByAtItsNewAddress) {
  ASSERT_TRUE(pair_.connect()) << pair_.error();
  pass(pair_, seconds(2));
  change(1, GetParam());
  ASSERT_TRUE(comes_back(1)) << "the standby has not found its new address";
  EXPECT_LE(stall_without_first_nics(), at_once);
  EXPECT_EQ(pair_.send_channel().counters().traffic_moves.get(), 1U);
}

TEST_P(RenewedInterfaces, AStandbyIsMadeWhereAnAddressComesLater) {
  std::vector<std::vector<fabric::NetInterface>> lists;
  for (sim::Process* host : hosts_of(GetParam())) {
    auto list = lists.emplace_back(*host->provider->interfaces());
    list[1].addresses = {*parse_address("fd00::1")};  // none that leads to the other host's
    host->provider->renew_interfaces(list);
  }
  ASSERT_TRUE(pair_.connect()) << pair_.error();
  pass(pair_, seconds(2));
  for (sim::Process* host : hosts_of(GetParam())) {
    host->provider->renew_interfaces(lists.front());
    lists.erase(lists.begin());
  }
  pass(pair_, milliseconds(100));
  EXPECT_LE(stall_without_first_nics(), at_once);
}

TEST_P(RenewedInterfaces, AFirstPathComesBackAtItsNewAddress) {
  ASSERT_TRUE(pair_.connect()) << pair_.error();
  pass(pair_, seconds(2));
  change(0, GetParam());
  ASSERT_EQ(transfer(1), "");
  EXPECT_GE(pair_.send_channel().counters().traffic_moves.get(), 1U);
  ASSERT_TRUE(comes_back(1)) << "the first path has not found its new address";
  pass(pair_, seconds(2));
  cut(1);
  const Instant begin = pair_.world().now();
  ASSERT_EQ(transfer(2), "");
  EXPECT_LE(pair_.world().now() - begin, seconds(2));
}

/// The path and the stream are gone at once, and neither side can be reached where it was.
class OnlyNics : public testing::TestWithParam<std::tuple<Host, bool>>, protected Renewed {
 protected:
  OnlyNics() : Renewed(1) {}
};
INSTANTIATE_TEST_SUITE_P(Hosts, OnlyNics,
                         testing::Values(std::tuple(Host::sender, false),
                                         std::tuple(Host::sender, true),
                                         std::tuple(Host::receiver, true)));

TEST_P(OnlyNics, AreFoundAtTheirNewAddress) {
  const auto [host, moves] = GetParam();
  ASSERT_TRUE(pair_.connect()) << pair_.error();
  pass(pair_, seconds(2));
  ASSERT_EQ(transfer(1), "");
  change(0, host, moves);
  ASSERT_EQ(transfer(2), "") << "nothing goes on within 20 s";
  const auto& counters = pair_.send_channel().counters();
  EXPECT_GE(counters.paths_back.get(), 1U) << "the path was not lost";
  EXPECT_GE(counters.streams_anew.get(), 1U) << "nor was the stream";
}

class SharedNics : public testing::Test, protected Renewed {
 protected:
  void tell(Host which, bool up) {
    for (sim::Process* host : hosts_of(which)) {
      pair_.world().tell_link(*host, host->addresses[1], up);
    }
  }
  void share_a_nic() {
    tell(Host::both, false);
    cut(1);
    ASSERT_TRUE(pair_.connect()) << pair_.error();
    pass(pair_, seconds(2));
  }
};

/// A standby that shares a NIC with the first path fails with it.
TEST_F(SharedNics, AreLeftOnceThereAreOthers) {
  share_a_nic();
  pair_.set_links({}, {}, 1);  // nobody hears of it
  pass(pair_, seconds(20));
  EXPECT_LE(stall_without_first_nics(), at_once);
}

class LinksOfSharedNics : public SharedNics, public testing::WithParamInterface<Host> {};
INSTANTIATE_TEST_SUITE_P(Hosts, LinksOfSharedNics,
                         testing::Values(Host::sender, Host::receiver, Host::both));

TEST_P(LinksOfSharedNics, AreHeardOfAtOnce) {
  share_a_nic();
  pair_.set_links({}, {}, 1);
  tell(GetParam(), true);
  pass(pair_, milliseconds(200));
  EXPECT_LE(stall_without_first_nics(), at_once);
}

/// The other end, or ARP, is a little later.
TEST_P(LinksOfSharedNics, MayComeBeforeTheirNetwork) {
  share_a_nic();
  tell(GetParam(), true);
  pass(pair_, milliseconds(2500));
  pair_.set_links({}, {}, 1);
  pass(pair_, milliseconds(2000));
  EXPECT_LE(stall_without_first_nics(), at_once);
}

/// A link that comes and goes leaves what stands by in peace.
TEST_F(SharedNics, AreNotLeftAgainAndAgain) {
  share_a_nic();
  const auto& counters = pair_.send_channel().counters();
  const uint64_t before = counters.paths_down.get();
  Duration without{};
  for (int i = 0; i < 6000; ++i) {
    tell(Host::receiver, i % 2 == 0);
    pass(pair_, milliseconds(10));
    const bool missed = counters.paths_down.get() > counters.paths_back.get();
    without += missed ? milliseconds(10) : Duration(0);
  }
  EXPECT_GE(counters.paths_down.get(), before + 1);
  EXPECT_LE(counters.paths_down.get(), before + 16);
  EXPECT_LE(without, seconds(3));
  // Less and less often: the gate opens after 15, 30, 60, 120 and 240 s.
  for (int i = 0; i < 54000; ++i) {
    tell(Host::receiver, i % 2 == 0);
    pass(pair_, milliseconds(10));
  }
  EXPECT_LE(counters.paths_down.get(), before + 40);
}

/// The host whose address changes first, and how many milliseconds later the other's does.
class AddressesInTurn : public testing::TestWithParam<std::tuple<Host, int>>, protected Renewed {};
INSTANTIATE_TEST_SUITE_P(Hosts, AddressesInTurn,
                         testing::Combine(testing::Values(Host::sender, Host::receiver),
                                          testing::Values(0, 1, 2, 5, 10, 20, 50, 100, 200)));

/// An attempt between an old address and a new one says nothing of the new ones.
TEST_P(AddressesInTurn, AStandbySharesNoNicAfterwards) {
  const auto [first, apart] = GetParam();
  for (const sim::Process* host : {&pair_.sender(), &pair_.receiver()}) {
    pair_.world().network().vanish(host->addresses[1]);
  }
  ASSERT_TRUE(pair_.connect()) << pair_.error();
  pass(pair_, seconds(2));
  change(1, first);
  pass(pair_, milliseconds(apart));
  change(1, first == Host::sender ? Host::receiver : Host::sender);
  pass(pair_, milliseconds(700));
  EXPECT_LE(stall_without_first_nics(), at_once);
}

class LinksInTurn : public testing::TestWithParam<std::tuple<Host, int>>, protected Renewed {
 protected:
  /// That of the second NIC there; both hosts hear of their own at once.
  void set_link(Host which, bool up) {
    for (sim::Process* host : hosts_of(which)) {
      (host == &pair_.sender() ? sender_up_ : receiver_up_) = up;
      pair_.world().tell_link(*host, host->addresses[1], up);
    }
    for (size_t here = 0; here < 2; ++here) {
      for (size_t there = 0; there < 2; ++there) {
        sim::Link link;
        link.cut = (here == 1 && !sender_up_) || (there == 1 && !receiver_up_);
        const sim::Ip from = pair_.sender().addresses[here];
        const sim::Ip to = pair_.receiver().addresses[there];
        pair_.world().network().set_link(from, to, link);
        pair_.world().network().set_link(to, from, link);
      }
    }
  }
  bool sender_up_ = true;
  bool receiver_up_ = true;
};
INSTANTIATE_TEST_SUITE_P(Hosts, LinksInTurn,
                         testing::Combine(testing::Values(Host::sender, Host::receiver),
                                          testing::Values(0, 1, 5, 20, 50, 100, 200, 300, 600)));

/// Meanwhile it stands by between the NIC that is back first and the first one of the other host.
TEST_P(LinksInTurn, AStandbySharesNoNicAfterwards) {
  const auto [first, apart] = GetParam();
  ASSERT_TRUE(pair_.connect()) << pair_.error();
  pass(pair_, seconds(2));
  const auto& counters = pair_.send_channel().counters();
  set_link(Host::both, false);
  pass(pair_, seconds(1));
  ASSERT_EQ(counters.paths_down.get(), 1U) << "the fault did not happen";
  set_link(first, true);
  pass(pair_, milliseconds(apart));
  set_link(first == Host::sender ? Host::receiver : Host::sender, true);
  pass(pair_, milliseconds(2500));
  EXPECT_LE(stall_without_first_nics(), at_once);
}

}  // namespace
}  // namespace nccl_ha::test
