// Whole connections over relayed paths: two opposite hosts of a ring of four, with a relay on
// either way round.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <vector>

#include "relay/provider_hops.h"
#include "relay/relay_factory.h"
#include "relay/relay_node.h"
#include "tests/rig/runs/link.h"
#include "tests/rig/runs/traffic.h"
#include "tests/rig/sim/world.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t ring_hosts = 4;

sim::Ip ring_address(size_t host, size_t cable) {
  return sim::ip(10, static_cast<uint8_t>(cable + 1), 0, static_cast<uint8_t>(host + 1));
}

relay::NodeId ring_id(size_t host) { return relay::NodeId{host + 1}; }

/// Cable i leads from host i to the next.
class RingHops final : public relay::NextHops {
 public:
  RingHops(size_t host, std::array<relay::RelayNode*, ring_hosts>& nodes)
      : host_(host), nodes_(nodes) {}
  std::optional<relay::NextHop> find(relay::NodeId neighbour) const override {
    const size_t after = (host_ + 1) % ring_hosts;
    const size_t before = (host_ + ring_hosts - 1) % ring_hosts;
    for (const size_t other : {after, before}) {
      if (ring_id(other) == neighbour) {
        const size_t cable = other == after ? host_ : other;
        const uint16_t port = nodes_[other] != nullptr ? nodes_[other]->port() : uint16_t{1};
        relay::NextHop found;
        found.relay.storage = sim::Endpoint{ring_address(other, cable), port}.to_sockaddr();
        found.local.storage = sim::Endpoint{ring_address(host_, cable), 0}.to_sockaddr();
        found.relay.length = found.local.length = sizeof(sockaddr_in);
        return found;
      }
    }
    return std::nullopt;
  }
  bool is_at(relay::NodeId neighbour, const IpAddress& from) const override {
    const auto known = find(neighbour);
    return known && IpAddress::from_sockaddr(known->relay.get())->same_as(from);
  }
  /// The first way goes by the next host, the other one by that before.
  std::vector<relay::NodeId> relays_to(relay::NodeId destination, const relay::Way& way) override {
    EXPECT_EQ(destination, ring_id((host_ + 2) % ring_hosts));
    return {ring_id((host_ + (way.number == 0 ? 1 : 3)) % ring_hosts)};
  }

 private:
  size_t host_;
  std::array<relay::RelayNode*, ring_hosts>& nodes_;
};

class RelayFabric : public testing::Test {
 protected:
  RelayFabric() {
    config_.fabric = "relay";
    config_.dgram_paths = 1;
    config_.counters_dir = "";
  }
  ~RelayFabric() override {
    traffic_.reset();
    link_.reset();
  }
  void SetUp() override {
    for (size_t i = 0; i < ring_hosts; ++i) {
      next_[i] = std::make_shared<RingHops>(i, nodes_);
      relay::RelayPath::Options own;
      own.self = ring_id(i);
      world_.kinds.clear();
      if (i % 2 == 0) {
        world_.kinds.push_back(relay::relay_fabric(
            next_[i], own,
            [this,
             i](const fabric::SocketAddress& local) -> Result<std::unique_ptr<fabric::PacketIo>> {
              return world_.network().open_packets(sim::Endpoint::of(local.get()).ip, ties_[i]);
            }));
      }
      sim::DeviceTraits traits;
      traits.gpu = true;
      auto process = world_.add_process(
          {ring_address(i, i), ring_address(i, (i + ring_hosts - 1) % ring_hosts)}, config_,
          rdma_[i], traits);
      ASSERT_TRUE(process) << process.error().message();
      hosts_[i] = *process;
      if (i % 2 == 1) {
        hops_[i] = std::make_unique<relay::ProviderHops>(*hosts_[i]->provider);
        relay::RelayOptions options;
        options.self = ring_id(i);
        auto node = std::make_unique<relay::RelayNode>(*hops_[i], *next_[i], options, "0");
        nodes_[i] = node.get();
        ASSERT_TRUE(hosts_[i]->engine->worker(0).adopt(std::move(node)));
      }
    }
    static_cast<void>(world_.run_until([] { return false; }, milliseconds(1)));
    connect(1);
  }
  /// Opposite hosts, with load on so many ways at once.
  void connect(size_t ways) {
    traffic_.reset();
    link_.reset();
    hosts_[0]->devices = fabric::RailDevices::ways_of(0, ways);
    rig::SimLink::Dialling how{relay::relay_kind, hosts_[0]->devices, {}};
    for (size_t i = 0; i < 2; ++i) {
      how.routes.push_back({.to = sim::Endpoint{hosts_[2]->addresses[i], 0}.to_sockaddr(),
                            .from = sim::Endpoint{hosts_[0]->addresses[i], 0}.to_sockaddr()});
    }
    link_ = std::make_unique<rig::SimLink>(world_, *hosts_[0], *hosts_[2], how);
    ASSERT_TRUE(link_->wait_ready()) << link_->error();
  }
  void begin_traffic(uint64_t groups) {
    rig::TransferPlan plan;
    plan.groups = groups;
    traffic_ = std::make_unique<rig::Traffic>(*link_, plan);
  }
  bool run_traffic(Duration limit) {
    return world_.run_until([&] { return traffic_->step(); }, limit);
  }
  /// Both ways of every cable carry so much and no more.
  void limit(uint64_t bytes_per_second) {
    sim::Link link = world_.network().all;
    link.rate = bytes_per_second;
    for (size_t host = 0; host < ring_hosts; ++host) {
      const sim::Ip here = ring_address(host, host);
      const sim::Ip there = ring_address((host + 1) % ring_hosts, host);
      world_.network().set_link(here, there, link);
      world_.network().set_link(there, here, link);
    }
  }
  uint64_t carried_over(size_t host) const {
    uint64_t bytes = 0;
    for (const relay::RelaySession* session : nodes_[host]->sessions()) {
      bytes += session->counts(0).bytes;
    }
    return bytes;
  }
  /// How long large messages take.
  Duration time_of_large(uint64_t groups) {
    rig::TransferPlan plan;
    plan.groups = groups;
    plan.bytes_max = 1 << 20;
    plan.large = 1;
    traffic_ = std::make_unique<rig::Traffic>(*link_, plan);
    const Instant begin = world_.now();
    EXPECT_TRUE(run_traffic(seconds(60)));
    EXPECT_EQ(traffic_->outcome(), "");
    return world_.now() - begin;
  }
  /// Of the two hosts only that one hears of it.
  void cut(size_t cable, size_t host, bool cut) {
    const sim::Ip here = ring_address(cable, cable);
    const sim::Ip there = ring_address((cable + 1) % ring_hosts, cable);
    sim::Link link = world_.network().all;
    link.cut = cut;
    world_.network().set_link(here, there, link);
    world_.network().set_link(there, here, link);
    world_.tell_link(*hosts_[host], ring_address(host, cable), !cut);
  }
  /// From that relay to the host in which connections end.
  static size_t cable_behind(size_t relay) { return relay == 1 ? 1 : 2; }
  static size_t cable_before(size_t relay) { return relay == 1 ? 0 : 3; }
  size_t carrying() const { return nodes_[1] != nullptr && !nodes_[1]->sessions().empty() ? 1 : 3; }
  void kill(size_t host) {
    nodes_[host] = nullptr;
    world_.kill_process(*hosts_[host]);
  }

  /// NICs of each host, from the one of its first cable on.
  std::array<size_t, ring_hosts> rdma_{};
  std::array<relay::RelayNode*, ring_hosts> nodes_{};
  std::array<std::shared_ptr<RingHops>, ring_hosts> next_;
  std::array<std::unique_ptr<relay::ProviderHops>, ring_hosts> hops_;
  std::array<sim::ProcessTiePtr, ring_hosts> ties_ = [] {
    std::array<sim::ProcessTiePtr, ring_hosts> made;
    for (auto& tie : made) {
      tie = std::make_shared<sim::ProcessTie>();
    }
    return made;
  }();
  Config config_;
  sim::World world_{11};
  std::array<sim::Process*, ring_hosts> hosts_{};
  std::unique_ptr<rig::SimLink> link_;
  std::unique_ptr<rig::Traffic> traffic_;
};

TEST_F(RelayFabric, CarriesDataOfActorsThatDoNotNameIt) {
  EXPECT_EQ(link_->sender().attachment().kind, relay::relay_kind);
  begin_traffic(100);
  EXPECT_TRUE(run_traffic(seconds(60)));
  EXPECT_EQ(traffic_->outcome(), "");
  EXPECT_GT(carried_over(1), 0U) << "no relay carried anything";
  EXPECT_EQ(carried_over(3), 0U) << "the other way round stands by";
}

TEST_F(RelayFabric, LoadGoesBothWaysRoundAtOnce) {
  limit(100'000'000);
  const Duration one_way = time_of_large(60);
  const uint64_t before = carried_over(1);
  ASSERT_EQ(carried_over(3), 0U);
  connect(2);
  const Duration both = time_of_large(60);
  EXPECT_LT(both, one_way * 65 / 100);
  const uint64_t one = carried_over(1) - before;
  const uint64_t other = carried_over(3);
  EXPECT_LT(one, 2 * other);
  EXPECT_LT(other, 2 * one);
}

TEST_F(RelayFabric, OfTwoWaysWithLoadTheOtherOneGoesOn) {
  const ErrorsOnly quiet;
  limit(100'000'000);
  connect(2);
  begin_traffic(300);
  ASSERT_FALSE(run_traffic(milliseconds(20))) << traffic_->outcome();
  ASSERT_GT(carried_over(1), 0U);
  ASSERT_GT(carried_over(3), 0U);
  kill(1);
  EXPECT_TRUE(run_traffic(seconds(60)));
  EXPECT_EQ(traffic_->outcome(), "");
}

TEST_F(RelayFabric, GoesTheOtherWayRoundWhenItsRelayIsKilled) {
  const ErrorsOnly quiet;
  begin_traffic(1000);
  ASSERT_FALSE(run_traffic(milliseconds(20)));
  const size_t killed = carrying();
  kill(killed);
  EXPECT_TRUE(run_traffic(seconds(60)));
  EXPECT_EQ(traffic_->outcome(), "");
  EXPECT_FALSE(nodes_[4 - killed]->sessions().empty());
}

TEST_F(RelayFabric, GoesTheOtherWayRoundWhenACableHasNoLink) {
  const ErrorsOnly quiet;
  for (const bool own : {true, false}) {
    connect(1);
    const uint64_t at_first = carried_over(1);
    begin_traffic(1000);
    ASSERT_FALSE(run_traffic(milliseconds(20)));
    const size_t relay = carried_over(1) > at_first ? 1 : 3;
    const size_t cable = own ? cable_before(relay) : cable_behind(relay);
    const uint64_t before = carried_over(4 - relay);
    cut(cable, own ? 0 : relay, true);
    ASSERT_FALSE(run_traffic(milliseconds(30))) << "sooner than any silence would tell";
    EXPECT_GT(carried_over(4 - relay), before) << own;
    cut(cable, own ? 0 : relay, false);
    EXPECT_TRUE(run_traffic(seconds(60)));
    EXPECT_EQ(traffic_->outcome(), "");
  }
}

TEST_F(RelayFabric, TheLastWayWaitsForACableThatHasNoLinkForAMoment) {
  const ErrorsOnly quiet;
  kill(3);
  begin_traffic(5000);
  ASSERT_FALSE(run_traffic(milliseconds(100)));
  ASSERT_EQ(nodes_[1]->sessions().size(), 1U);
  const uint64_t session = nodes_[1]->sessions()[0]->number();
  cut(cable_behind(1), 1, true);
  ASSERT_FALSE(run_traffic(milliseconds(30)));
  cut(cable_behind(1), 1, false);
  EXPECT_TRUE(run_traffic(seconds(60)));
  EXPECT_EQ(traffic_->outcome(), "");
  ASSERT_EQ(nodes_[1]->sessions().size(), 1U);
  EXPECT_EQ(nodes_[1]->sessions()[0]->number(), session) << "and is not made anew";
}

TEST_F(RelayFabric, EndsOnBothSidesWhenNoWayIsLeft) {
  const ErrorsOnly quiet;
  begin_traffic(1000);
  ASSERT_FALSE(run_traffic(milliseconds(20)));
  kill(1);
  kill(3);
  EXPECT_TRUE(run_traffic(end_bound(config_) + seconds(config_.connect_timeout_ms / 1000)));
  EXPECT_NE(traffic_->outcome(), "") << "nothing can have arrived";
}

/// All hops are carried by devices.
class RelayedByDevices : public RelayFabric {
 protected:
  RelayedByDevices() {
    config_.fabric = "auto";
    rdma_.fill(2);
  }
  /// As over a device of its own, the sender goes on after a quarter of a second without a proof.
  void fail_one_of_the_senders(const sim::RdmaNic::Death& death) {
    const ErrorsOnly quiet;
    connect(2);
    begin_traffic(1000);
    ASSERT_FALSE(run_traffic(milliseconds(20))) << traffic_->outcome();
    ASSERT_GT(carried_over(1), 0U);
    ASSERT_GT(carried_over(3), 0U);
    const ConnectionCounters& counted = link_->sender().counters();
    const uint64_t before = counted.paths_down.get();
    hosts_[0]->nics[0]->fail_for_good(death);
    EXPECT_TRUE(run_traffic(seconds(60)));
    EXPECT_EQ(traffic_->outcome(), "");
    EXPECT_GT(counted.paths_down.get(), before) << "nothing went over it";
    EXPECT_LT(counted.longest_stall_ns.get(), 1'500'000'000U);
  }
  void remove_in_order(size_t host) {
    const ErrorsOnly quiet;
    connect(2);
    begin_traffic(2000);
    ASSERT_FALSE(run_traffic(milliseconds(20))) << traffic_->outcome();
    const uint64_t refused = world_.rdma().counts.refused;
    hosts_[host]->nics[0]->take_memory();
    ASSERT_FALSE(run_traffic(milliseconds(2))) << traffic_->outcome();
    hosts_[host]->nics[0]->fail_for_good({.gone_after = milliseconds(30)});
    EXPECT_TRUE(run_traffic(seconds(60)));
    EXPECT_EQ(traffic_->outcome(), "");
    EXPECT_GT(world_.rdma().counts.refused, refused) << "it went unnoticed";
    EXPECT_LT(link_->sender().counters().longest_stall_ns.get(), 1'500'000'000U);
  }
};

/// Its memory goes first: keys are refused for a moment, as if they were wrong.
TEST_F(RelayedByDevices, ADeviceOfTheSendersThatIsRemovedInOrderLeavesItToTheOtherWay) {
  remove_in_order(0);
}

TEST_F(RelayedByDevices, ADeviceOfARelayThatIsRemovedInOrderLeavesItToTheOtherWay) {
  remove_in_order(1);
}

TEST_F(RelayedByDevices, ADeviceOfTheReceiversThatIsRemovedInOrderLeavesItToTheOtherWay) {
  remove_in_order(2);
}

TEST_F(RelayedByDevices, ADeviceOfTheSendersThatHangsLeavesItToTheOtherWay) {
  fail_one_of_the_senders({.hangs = true, .gone_after = seconds(3600)});
}

TEST_F(RelayedByDevices, ADeviceOfTheSendersThatIsResetLeavesItToTheOtherWay) {
  fail_one_of_the_senders({.gone_after = seconds(3600)});
}

/// Each end has memory of a GPU, which the processor does not touch.
class RelayedGpu : public RelayFabric {
 protected:
  RelayedGpu() {
    config_.fabric = "auto";
    config_.ib_flush = 1;
    rdma_.fill(2);
  }
  void SetUp() override {
    RelayFabric::SetUp();
    for (sim::RdmaNic* nic : hosts_[2]->nics) {
      nic->verbs().faults.gpu_landing = milliseconds(1);
    }
  }
  void begin_gpu_traffic(uint64_t groups, bool gpu = true) {
    rig::TransferPlan plan;
    plan.groups = groups;
    plan.gpu = gpu;
    plan.flushes = true;
    traffic_ = std::make_unique<rig::Traffic>(*link_, plan);
  }
  /// Whatever leads to or from there takes the hop that every host has.
  void set_ports(size_t host, bool up) {
    for (sim::RdmaNic* nic : hosts_[host]->nics) {
      nic->set_port(up);
    }
  }
  fabric::FabricKind hop(size_t relay, relay::RelaySession::Side side) const {
    return nodes_[relay]->sessions().back()->hop_kind(side);
  }
};

TEST_F(RelayedGpu, DevicesBringItAndFetchIt) {
  begin_gpu_traffic(200);
  EXPECT_TRUE(run_traffic(seconds(60)));
  EXPECT_EQ(traffic_->outcome(), "");
  EXPECT_GT(carried_over(1), 0U);
  EXPECT_GT(hosts_[2]->nics[0]->memory().gpu_flushed + hosts_[2]->nics[1]->memory().gpu_flushed,
            0U);
}

TEST_F(RelayedGpu, BothWaysRoundAtOnce) {
  limit(100'000'000);
  connect(2);
  begin_gpu_traffic(200);
  EXPECT_TRUE(run_traffic(seconds(60)));
  EXPECT_EQ(traffic_->outcome(), "");
  EXPECT_GT(carried_over(1), 0U);
  EXPECT_GT(carried_over(3), 0U);
}

TEST_F(RelayedGpu, APathOfDatagramsIsMadeAnew) {
  const ErrorsOnly quiet;
  for (const std::vector<size_t>& ends : std::vector<std::vector<size_t>>{{0}, {2}, {0, 2}}) {
    const auto set_all = [&](bool up) {
      std::ranges::for_each(ends, [&](size_t end) { set_ports(end, up); });
    };
    const auto by_datagrams = [&](size_t relay) {
      return std::ranges::count_if(ends, [&](size_t end) {
        const auto side = end == 0 ? relay::RelaySession::up : relay::RelaySession::down;
        return hop(relay, side) == fabric::datagram_kind;
      });
    };
    set_all(false);
    connect(1);
    ASSERT_EQ(by_datagrams(1), std::ssize(ends));
    begin_gpu_traffic(20, false);
    ASSERT_TRUE(run_traffic(seconds(60)));
    ASSERT_EQ(traffic_->outcome(), "") << "which host memory does not mind, nor its flushes";
    traffic_.reset();
    set_all(true);
    begin_gpu_traffic(100);
    EXPECT_TRUE(run_traffic(seconds(60))) << ends.front() << ", " << ends.size();
    EXPECT_EQ(traffic_->outcome(), "") << ends.front() << ", " << ends.size();
    EXPECT_EQ(by_datagrams(carrying()), 0);
  }
}

/// It is left out for a minute, and nothing else reaches that memory.
TEST_F(RelayedGpu, ADeviceThatIsAvoidedBringsItWhereNothingElseMay) {
  const ErrorsOnly quiet;
  for (const size_t relay : {1, 3}) {
    const sockaddr_storage local =
        sim::Endpoint{ring_address(relay, cable_behind(relay)), 0}.to_sockaddr();
    const auto places = hops_[relay]->places(reinterpret_cast<const sockaddr*>(&local));
    ASSERT_FALSE(places.front().direct);
    hops_[relay]->avoid(places.front(), ring_id(2), world_.now(), "test");
  }
  connect(1);
  ASSERT_EQ(hop(1, relay::RelaySession::down), fabric::datagram_kind) << "it is not avoided";
  begin_gpu_traffic(50);
  EXPECT_TRUE(run_traffic(seconds(20)));
  EXPECT_EQ(traffic_->outcome(), "");
  const size_t carrying = nodes_[1]->sessions().empty() ? 3 : 1;
  EXPECT_NE(hop(carrying, relay::RelaySession::down), fabric::datagram_kind);
}

TEST_F(RelayedGpu, ADeviceThatDoesNotTakeItSaysSoWhenItIsRegistered) {
  fabric::Provider& provider = *hosts_[2]->provider;
  const fabric::Attachment at = link_->receiver().attachment();
  const uint64_t domain = link_->receiver().domain();
  const size_t before = provider.memory().size();
  hosts_[2]->nics[0]->verbs().faults[sim::Verb::register_dmabuf] = 1;
  std::vector<std::byte> memory(4096);
  const int descriptor = sim::Network::make_event();
  EXPECT_FALSE(provider.add_dmabuf(at, domain, memory.data(), memory.size(), 0, descriptor));
  EXPECT_EQ(hosts_[2]->nics[0]->verbs().failures(sim::Verb::register_dmabuf), 1U);
  EXPECT_FALSE(provider.has_gpu_memory(domain));
  EXPECT_EQ(provider.memory().size(), before) << "and nothing is left of it";
  hosts_[2]->nics[0]->verbs().faults[sim::Verb::register_dmabuf] = 0;
  const auto taken = provider.add_dmabuf(at, domain, memory.data(), memory.size(), 0, descriptor);
  ASSERT_TRUE(taken) << taken.error().message();
  EXPECT_TRUE(provider.has_gpu_memory(domain));
  EXPECT_FALSE(provider.has_gpu_memory(domain + 1));
  EXPECT_TRUE(provider.remove_memory(*taken));
  EXPECT_FALSE(provider.has_gpu_memory(domain));
  close(descriptor);
}

/// The first host's NICs reach no GPU, and it would send eager messages.
class RelayedToGpu : public RelayedGpu {
 protected:
  RelayedToGpu() { rdma_[0] = 0; }
};

TEST_F(RelayedToGpu, NoEagerMessageComesThere) {
  begin_gpu_traffic(50);
  EXPECT_TRUE(run_traffic(milliseconds(200)));
  EXPECT_EQ(traffic_->outcome(), "");
}

}  // namespace
}  // namespace nccl_ha::test
