// Interfaces whose addresses and numbers change while connections use them.
#include <gtest/gtest.h>

#include <array>

#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using tools::SimPair;

enum class Host : uint8_t { sender, receiver, both };

sim::Ip ip_of(const IpAddress& address) {
  return uint32_t{address.bytes[0]} << 24 | uint32_t{address.bytes[1]} << 16 |
         uint32_t{address.bytes[2]} << 8 | address.bytes[3];
}

class RenewedInterfaces : public testing::TestWithParam<Host> {
 protected:
  RenewedInterfaces() : pair_(97, {}, config(), {.rails = 2}) {}
  static Config config() {
    Config config;
    config.shadow_paths = 1;
    config.enable_failback = true;
    config.failback_ms = 500;
    return config;
  }

  /// Nothing gets through at the rail's present addresses, and a NIC there gets another one.
  void change(size_t rail) {
    sim::Link dark;
    dark.cut = true;
    pair_.set_links(dark, dark, rail);
    const std::array hosts = {&pair_.sender(), &pair_.receiver()};
    for (size_t i = 0; i < hosts.size(); ++i) {
      sim::Process& host = *hosts[i];
      auto list = *host.provider->interfaces();
      IpAddress& address = list[rail].addresses.front();
      const sim::Ip before = ip_of(address);
      const bool its =
          GetParam() == Host::both || (GetParam() == Host::sender) == (hosts[i] == &pair_.sender());
      if (!its) {
        continue;
      }
      address.bytes[2] = 77;
      list[rail].ifindex += 20;
      pair_.world().network().same_host_as(host.address, ip_of(address));
      ASSERT_NE(ip_of(address), before);
      host.provider->renew_interfaces(list);
    }
  }
  std::string transfer(uint64_t seed) {
    tools::TransferPlan plan;
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

  SimPair pair_;
};
INSTANTIATE_TEST_SUITE_P(Hosts, RenewedInterfaces,
                         testing::Values(Host::sender, Host::receiver, Host::both));

TEST_P(RenewedInterfaces, AStandbyStandsByAtItsNewAddress) {
  ASSERT_TRUE(pair_.connect()) << pair_.error();
  pass(pair_, seconds(2));
  change(1);
  ASSERT_TRUE(comes_back(1)) << "the standby has not found its new address";
  cut(0);
  const Instant begin = pair_.world().now();
  ASSERT_EQ(transfer(1), "");
  EXPECT_LE(pair_.world().now() - begin, seconds(2));
  EXPECT_EQ(pair_.send_channel().counters().traffic_moves.get(), 1U);
}

TEST_P(RenewedInterfaces, AFirstPathComesBackAtItsNewAddress) {
  ASSERT_TRUE(pair_.connect()) << pair_.error();
  pass(pair_, seconds(2));
  change(0);
  ASSERT_EQ(transfer(1), "");
  EXPECT_GE(pair_.send_channel().counters().traffic_moves.get(), 1U);
  ASSERT_TRUE(comes_back(1)) << "the first path has not found its new address";
  pass(pair_, seconds(2));
  cut(1);
  const Instant begin = pair_.world().now();
  ASSERT_EQ(transfer(2), "");
  EXPECT_LE(pair_.world().now() - begin, seconds(2));
}

}  // namespace
}  // namespace nccl_ha::test
