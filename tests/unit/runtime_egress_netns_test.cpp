// By which interface the kernel sends, and whether a socket can choose: routes of a network of the
// test's own.
#include <gtest/gtest.h>
#include <net/if.h>

#include "runtime/base/egress.h"
#include "tests/support/own_network.h"
#include "tests/support/until.h"

namespace nccl_ha {
namespace {

using test::in_own_network;
using test::ip;
using test::lay_cable;

IpAddress address(const char* text) { return parse_address(text).value(); }

int index_of(const char* interface) { return static_cast<int>(if_nametoindex(interface)); }

struct Case {
  const char* name;
  const char* setup;  ///< for a shell, beside two NICs in one subnet
  const char* from;
  const char* to;
  Egress::Kind kind;
  const char* interface;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

using Kind = Egress::Kind;
constexpr const char* second_first =
    "ip -6 route del fd00:9::/64 dev eth0; ip -6 route add fd00:9::/64 dev eth0 metric 100";
const Case cases[] = {
    {"the_route_is_the_own_one", "", "10.9.0.10", "10.9.0.20", Kind::own, "eth0"},
    {"another_nic_of_the_subnet_comes_first", "", "10.9.0.11", "10.9.0.20", Kind::chosen, "eth1"},
    {"the_same_with_IPv6", "", "fd00:9::11", "fd00:9::20", Kind::chosen, "eth1"},
    {"IPv6_with_another_metric", second_first, "fd00:9::11", "fd00:9::20", Kind::other, "eth0"},
    {"one_metric_for_each_NIC", "ip route add 10.9.0.0/24 dev eth1 metric 101", "10.9.0.11",
     "10.9.0.20", Kind::chosen, "eth1"},
    {"on_this_host", "", "10.9.0.11", "10.9.0.10", Kind::local, "lo"},
    {"on_this_host_with_IPv6", "", "fd00:9::11", "fd00:9::10", Kind::local, "lo"},
    {"the_only_way_is_the_other_NICs", "ip route add default via 10.9.0.1 dev eth0", "10.9.0.11",
     "10.77.0.1", Kind::other, "eth0"},
    {"a_default_route_is_not_as_good",
     "ip route add default via 10.9.0.1 dev eth1; ip route add 10.77.0.0/24 dev eth0", "10.9.0.11",
     "10.77.0.1", Kind::other, "eth0"},
    {"two_default_routes",
     "ip route add default via 10.9.0.1 dev eth0; "
     "ip route add default via 10.9.0.1 dev eth1 metric 10",
     "10.9.0.11", "10.77.0.1", Kind::chosen, "eth1"},
    {"an_address_of_no_NIC", "ip addr add 10.5.0.1/32 dev lo", "10.5.0.1", "10.9.0.20",
     Kind::unknown, ""},
    {"a_rule_leads_elsewhere",
     "ip rule add from 10.9.0.11 lookup 7; ip route add 10.9.0.0/24 dev eth0 table 7", "10.9.0.11",
     "10.9.0.20", Kind::other, "eth0"},
    {"a_rule_leads_by_the_own_NIC",
     "ip rule add from 10.9.0.11 lookup 7; ip route add 10.9.0.0/24 dev eth1 table 7", "10.9.0.11",
     "10.9.0.20", Kind::own, "eth1"},
    {"nothing_leads_there", "", "10.9.0.11", "10.77.0.1", Kind::unknown, ""},
    {"somebody_elses_address", "", "10.9.0.99", "10.9.0.20", Kind::unknown, ""},
    {"the_link_is_down_for_now", "ip link set eth0 down", "10.9.0.11", "10.9.0.20", Kind::own,
     "eth1"},
};

class FindEgress : public testing::TestWithParam<Case> {};

TEST_P(FindEgress, AsTheKernelSends) {
  const Case& one = GetParam();
  EXPECT_EQ(
      in_own_network([&] {
        ASSERT_TRUE(lay_cable("eth0") && lay_cable("eth1") && ip("link set lo up"));
        for (const char* added : {"10.9.0.10/24 dev eth0", "10.9.0.11/24 dev eth1",
                                  "fd00:9::10/64 dev eth0 nodad", "fd00:9::11/64 dev eth1 nodad"}) {
          ASSERT_TRUE(ip(std::string("addr add ") + added));
        }
        const std::string setup = std::string("PATH=$PATH:/usr/sbin:/sbin; ") + one.setup;
        ASSERT_EQ(std::system(setup.c_str()), 0);
        Egress egress;
        // The kernel hears of a new link's carrier, without which IPv6 has neither addresses nor
        // routes there, in a worker's turn, and of each link by itself.
        test::until([&] {
          egress = find_egress(address(one.from), address(one.to));
          return egress.kind == one.kind && egress.interface == index_of(one.interface);
        });
        EXPECT_EQ(egress.kind, one.kind);
        EXPECT_EQ(egress.interface, index_of(one.interface));
      }),
      0);
}

INSTANTIATE_TEST_SUITE_P(Routes, FindEgress, testing::ValuesIn(cases),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace nccl_ha
