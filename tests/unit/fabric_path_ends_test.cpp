// By which NIC what a path sends leaves: as its PacketIo found out when the peer became known.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "runtime/base/ip_address.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/datagram/datagram_path.h"
#include "runtime/fabric/datagram/path_ends.h"
#include "runtime/fabric/datagram/port.h"
#include "tests/rig/sim/secrets.h"
#include "tests/support/memory_network.h"

namespace nccl_ha::fabric {
namespace {

using std::chrono::seconds;
using Kind = FailureDomain::Kind;

/// Answers the question for the way out, and notes how each datagram was to leave.
class RoutedIo final : public PacketIo {
 public:
  struct Seen {
    Egress answer;
    size_t asked = 0;
    size_t by_own_nic = 0;
    size_t as_routed = 0;
  };
  RoutedIo(std::unique_ptr<PacketIo> inner, Seen* seen) : inner_(std::move(inner)), seen_(seen) {}
  size_t send(Channel channel, std::span<OutDatagram> out) override {
    for (const OutDatagram& one : out) {
      ++(one.to->by_own_nic ? seen_->by_own_nic : seen_->as_routed);
    }
    return inner_->send(channel, out);
  }
  size_t receive(Channel channel, PacketSink& sink, size_t limit) override {
    return inner_->receive(channel, sink, limit);
  }
  Egress egress(const SocketAddress&) override {
    ++seen_->asked;
    return seen_->answer;
  }
  SocketAddress local(Channel channel) const override { return inner_->local(channel); }
  size_t receive_buffer_bytes() const override { return inner_->receive_buffer_bytes(); }
  bool segmentation_offload() const override { return false; }
  int wait_fd(Channel) const override { return -1; }

 private:
  std::unique_ptr<PacketIo> inner_;
  Seen* seen_;
};

class WayOut : public testing::Test, private PathOwner {
 protected:
  /// A path of this host's "eth1" whose peer is known, and which has sent its first pings.
  std::unique_ptr<Path> connect(const PacketIo::Egress& answer) {
    clock_.set(Instant(seconds(1)));
    network_.set_time(clock_.now());
    seen_.answer = answer;
    port_ = std::make_unique<DatagramPort>(
        std::make_unique<RoutedIo>(network_.open(), &seen_), DatagramOptions{},
        DatagramPort::Environment{&memory_, &clock_, &timers_, &secrets_, nullptr}, 1500);
    PathOptions options;
    options.nic = "eth1";
    auto path = std::move(*port_->create_path(options, this));
    auto peer = std::move(*port_->create_path({}, this));
    EXPECT_EQ(seen_.asked, 0U);
    EXPECT_TRUE(path->connect(peer->local_address()));
    return path;
  }
  void on_completion(const Completion&) override {}
  void on_path_state(Path&, PathState, const Error&) override {}
  void on_fence_stuck(Path&, const Error&) override {}

  ManualClock clock_;
  Memory memory_;
  TimerWheel timers_{Instant(seconds(1))};
  sim::SimSecrets secrets_{1};
  test::MemoryNetwork network_{1};
  RoutedIo::Seen seen_;
  std::unique_ptr<DatagramPort> port_;
};

TEST_F(WayOut, ByTheOwnNic) {
  const auto path = connect({true, {}});
  EXPECT_EQ(seen_.asked, 1U) << "once for each path";
  EXPECT_GT(seen_.by_own_nic, 0U);
  EXPECT_EQ(seen_.as_routed, 0U);
  FailureDomains domains;
  path->failure_domains(domains);
  EXPECT_TRUE(contains(domains, {Kind::local_nic, "eth1"}));
  EXPECT_EQ(std::ranges::count(domains, Kind::local_nic, &FailureDomain::kind), 1);
}

TEST_F(WayOut, ByAnotherNicThePathFailsWithThatToo) {
  const auto path = connect({false, "eth0"});
  EXPECT_GT(seen_.as_routed, 0U);
  EXPECT_EQ(seen_.by_own_nic, 0U);
  FailureDomains domains;
  path->failure_domains(domains);
  EXPECT_TRUE(contains(domains, {Kind::local_nic, "eth0"}));
  EXPECT_TRUE(contains(domains, {Kind::local_nic, "eth1"}));
  EXPECT_NE(path->describe().find("by another NIC, eth0"), std::string::npos) << path->describe();
}

/// A link-local address means nothing without the interface, whose number the peer's host gave.
TEST(PathEnds, ALinkLocalPeerIsOnTheInterfaceOfTheOwnEnd) {
  const auto of = [](const char* text, uint32_t scope) {
    IpAddress ip = *parse_address(text);
    ip.scope_id = scope;
    WireAddress address;
    address.command.length = ip.to_sockaddr(7000, &address.command.storage);
    address.data.length = ip.to_sockaddr(7001, &address.data.storage);
    address.mtu = 1500;
    address.socket_bytes = 1U << 20;
    address.window = 64;
    address.tiny_bytes = 1000;
    return address;
  };
  PathEnds here(of("fe80::1", 3));
  const PathEnds there(of("fe80::2", 9));
  ASSERT_TRUE(here.set_peer(there.local_bytes()));
  for (const SocketAddress* one : {&here.peer().command, &here.peer().data}) {
    EXPECT_EQ(reinterpret_cast<const sockaddr_in6*>(&one->storage)->sin6_scope_id, 3U);
  }
}

}  // namespace
}  // namespace nccl_ha::fabric
