// Two NICs in one subnet: by which of them datagrams leave, as the interfaces count.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/fabric/datagram/udp_io.h"
#include "tests/support/own_network.h"

namespace nccl_ha::fabric {
namespace {

using test::in_own_network;
using test::ip;
using test::lay_cable;

SocketAddress address(const char* text, uint16_t port) {
  SocketAddress made;
  made.length = parse_address(text).value().to_sockaddr(port, &made.storage);
  return made;
}

uint64_t sent_by(const std::string& interface) {
  std::ifstream file("/proc/thread-self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon != std::string::npos && line.substr(0, colon).ends_with(" " + interface)) {
      std::istringstream words(line.substr(colon + 1));
      uint64_t value = 0;
      for (int column = 0; column <= 8; ++column) {
        words >> value;
      }
      return value;
    }
  }
  return 0;
}

struct Family {
  const char* name;
  const char* own;
  const char* peer;
  const char* bits;
};
void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

class TwoNicsInOneSubnet : public testing::TestWithParam<Family> {
 protected:
  /// eth0 has the first route and another address, eth1 the address that is used.
  static void prepare(const Family& family) {
    ASSERT_TRUE(lay_cable("eth0") && lay_cable("eth1"));
    const std::string bits = family.bits;
    const std::string first = bits == "24" ? "10.9.0.10" : "fd00:9::10";
    const std::string more = bits == "24" ? "" : " nodad";
    ASSERT_TRUE(ip("addr add " + first + "/" + bits + " dev eth0" + more));
    ASSERT_TRUE(ip("addr add " + std::string(family.own) + "/" + bits + " dev eth1" + more));
    for (const char* nic : {"eth0", "eth1"}) {
      ASSERT_TRUE(
          ip("neigh add " + std::string(family.peer) + " lladdr 02:00:00:00:00:01 dev " + nic));
    }
    // The kernel hears of a new link's carrier, without which IPv6 has no addresses, in a worker's
    // turn.
    ASSERT_TRUE(test::until(
        [&] { return ip("route get " + std::string(family.own) + " | grep -q ^local"); }));
  }
};

TEST_P(TwoNicsInOneSubnet, EachDatagramAndEachRunLeavesByTheOwnOne) {
  const Family& family = GetParam();
  EXPECT_EQ(in_own_network([&] {
              prepare(family);
              const auto io = UdpIo::open({address(family.own, 0)});
              ASSERT_TRUE(io.ok()) << io.error().message();
              SocketAddress peer = address(family.peer, 9);
              const PacketIo::Egress egress = (*io)->egress(peer);
              EXPECT_TRUE(egress.by_own_nic);
              EXPECT_EQ(egress.other_nic, "");
              peer.by_own_nic = egress.by_own_nic;
              std::vector<std::byte> payload(3000, std::byte{5});
              iovec small{payload.data(), 1000};
              iovec large{payload.data(), 3000};
              const OutDatagram alone{&peer, &small, 1, 0, false};
              const OutDatagram run{&peer, &large, 1, 1000, false};
              const uint64_t before = sent_by("eth0");
              for (std::vector<OutDatagram> out :
                   {std::vector{alone}, std::vector{run}, std::vector{run, alone, run}}) {
                uint64_t expected = sent_by("eth1");
                for (const OutDatagram& one : out) {
                  expected += one.parts->iov_len;
                }
                ASSERT_EQ((*io)->send(Channel::data, out), out.size());
                EXPECT_GE(sent_by("eth1"), expected);
              }
              EXPECT_LT(sent_by("eth0"), before + 1000) << "nothing but a greeting of its own";
            }),
            0);
}

TEST_P(TwoNicsInOneSubnet, AWayThatIsNotTheOwnNicsIsTold) {
  const Family& family = GetParam();
  EXPECT_EQ(in_own_network([&] {
              prepare(family);
              const std::string six = *family.bits == '6' ? "-6 " : "";
              ASSERT_TRUE(ip(six + "rule add from " + family.own + " lookup 7"));
              ASSERT_TRUE(ip(six + "route add " + family.peer + " dev eth0 table 7"));
              const auto io = UdpIo::open({address(family.own, 0)});
              ASSERT_TRUE(io.ok()) << io.error().message();
              const PacketIo::Egress egress = (*io)->egress(address(family.peer, 9));
              EXPECT_FALSE(egress.by_own_nic);
              EXPECT_EQ(egress.other_nic, "eth0");
            }),
            0);
}

INSTANTIATE_TEST_SUITE_P(Families, TwoNicsInOneSubnet,
                         testing::Values(Family{"IPv4", "10.9.0.11", "10.9.0.20", "24"},
                                         Family{"IPv6", "fd00:9::11", "fd00:9::20", "64"}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace nccl_ha::fabric
