// Connections over a kind of fabric that neither runtime/ nor actors/ names, whose paths get their
// addresses late and long ones.
#include "tests/support/late_fabric.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>

#include "runtime/engine/worker.h"
#include "tests/rig/runs/link.h"
#include "tests/rig/runs/traffic.h"
#include "tests/support/path_harness.h"

namespace nccl_ha::test {
namespace {

using fabric::FailureDomain;
using fabric::NicNotice;
using std::chrono::milliseconds;
using std::chrono::seconds;

class LateFabric : public testing::Test {
 protected:
  LateFabric() {
    config_.fabric = "late";
    config_.dgram_paths = 1;
  }
  ~LateFabric() override {
    traffic_.reset();
    link_.reset();
  }
  void add_hosts() {
    world_.kinds.push_back(late_fabric(world_.network(), paths_));
    for (uint8_t host = 1; host <= 2; ++host) {
      auto process =
          world_.add_process({sim::ip(10, 0, 0, host), sim::ip(10, 1, 0, host)}, config_);
      ASSERT_TRUE(process) << process.error().message();
      hosts_[host - 1U] = *process;
    }
    link_ = std::make_unique<rig::SimLink>(world_, *hosts_[0], *hosts_[1]);
  }
  void connect() {
    add_hosts();
    ASSERT_TRUE(link_->wait_ready()) << link_->error();
  }
  void begin_traffic(uint64_t groups) {
    rig::TransferPlan plan;
    plan.groups = groups;
    traffic_ = std::make_unique<rig::Traffic>(*link_, plan);
  }
  void finish_traffic() {
    EXPECT_TRUE(world_.run_until([&] { return traffic_->step(); }, seconds(120)));
    EXPECT_EQ(traffic_->outcome(), "");
  }
  void pass(Duration time) {
    static_cast<void>(world_.run_until([] { return false; }, time));
  }
  uint64_t moves() const { return link_->sender().counters().traffic_moves.get(); }
  void tell(NicNotice::Kind kind, const FailureDomain& domain) {
    hosts_[0]->provider->nics().post({kind, {domain}, ""});
  }

  LatePaths paths_;
  Config config_;
  sim::World world_{11};
  std::array<sim::Process*, 2> hosts_{};
  std::unique_ptr<rig::SimLink> link_;
  std::unique_ptr<rig::Traffic> traffic_;
};

TEST_F(LateFabric, CarriesDataOfActorsThatDoNotNameIt) {
  connect();
  EXPECT_EQ(link_->sender().attachment().kind, late_kind);
  EXPECT_EQ(link_->receiver().attachment().kind, late_kind);
  begin_traffic(20);
  finish_traffic();
  EXPECT_GE(paths_.addressed, 2U);
  EXPECT_GE(paths_.connected, 2U);
}

TEST_F(LateFabric, EightAddressesOfTheGreatestLengthFitIntoTheHandshake) {
  paths_.address_bytes = fabric::path_address_max;
  config_.dgram_paths = 8;
  connect();
  EXPECT_GE(paths_.connected, 16U);
  begin_traffic(20);
  finish_traffic();
}

TEST_F(LateFabric, AnAddressThatIsTooLongIsRefusedInWords) {
  paths_.address_bytes = fabric::path_address_max + 1;
  config_.enable_backup = false;
  add_hosts();
  EXPECT_FALSE(link_->wait_ready());
  EXPECT_NE(link_->error().find("513 bytes, 1 to 512 can be told"), std::string::npos)
      << link_->error();
}

TEST_F(LateFabric, APathWithoutAnAddressFailsAConnectionWithoutFailover) {
  paths_.refused = 1;
  config_.enable_backup = false;
  add_hosts();
  EXPECT_FALSE(link_->wait_ready());
  EXPECT_NE(link_->error().find("the host in between gives no address"), std::string::npos)
      << link_->error();
}

TEST_F(LateFabric, OneOfSeveralWithoutAnAddressIsMadeAnew) {
  paths_.refused = 1;
  config_.dgram_paths = 2;
  connect();
  const unsigned before = paths_.made;
  begin_traffic(50);
  finish_traffic();
  pass(seconds(2));
  EXPECT_GT(paths_.made, before);
  EXPECT_EQ(paths_.refused, 0U);
}

TEST_F(LateFabric, AConnectionWithoutAnyAddressAtFirstComesUpLater) {
  paths_.refused = 1;
  connect();
  EXPECT_EQ(paths_.refused, 0U) << "the fault did not happen";
  begin_traffic(20);
  finish_traffic();
}

TEST_F(LateFabric, AFallbackPathThatGetsItsAddressLateTakesOver) {
  paths_.address_after = milliseconds(40);
  connect();
  pass(seconds(1));
  begin_traffic(200);
  static_cast<void>(world_.run_until(
      [&] { return traffic_->step() || traffic_->groups_done() > 20; }, seconds(60)));
  sim::Link dark;
  dark.cut = true;
  world_.network().set_link(sim::ip(10, 0, 0, 1), sim::ip(10, 0, 0, 2), dark);
  world_.network().set_link(sim::ip(10, 0, 0, 2), sim::ip(10, 0, 0, 1), dark);
  finish_traffic();
  EXPECT_GE(moves(), 1U);
}

TEST_F(LateFabric, AFallbackPathThatGetsNoneAtFirstIsTriedAgain) {
  connect();
  paths_.refused = 3;
  ASSERT_TRUE(world_.run_until([&] { return paths_.refused == 0; }, seconds(30)));
  const unsigned before = paths_.connected;
  EXPECT_TRUE(world_.run_until([&] { return paths_.connected >= before + 2; }, seconds(60)));
  begin_traffic(20);
  finish_traffic();
}

/// Traffic leaves a path that nothing is wrong with but what is said of it, and comes back.
class LateDomains : public LateFabric, public testing::WithParamInterface<FailureDomain> {};

TEST_P(LateDomains, ANoticeReachesThePathsInIt) {
  paths_.through_hosts = true;
  connect();
  pass(seconds(1));  // the fallback path is there
  ASSERT_EQ(moves(), 0U);
  tell(NicNotice::Kind::down, {GetParam().kind, "of nobody"});
  pass(milliseconds(100));
  EXPECT_EQ(moves(), 0U);
  tell(NicNotice::Kind::down, GetParam());
  EXPECT_TRUE(world_.run_until([&] { return moves() == 1; }, milliseconds(50)));
  begin_traffic(20);
  finish_traffic();
}

INSTANTIATE_TEST_SUITE_P(OfEachKind, LateDomains,
                         testing::Values(FailureDomain{FailureDomain::Kind::local_nic, "sim0"},
                                         FailureDomain{FailureDomain::Kind::remote_nic, "10.0.0.2"},
                                         FailureDomain{FailureDomain::Kind::host, "host0"}),
                         [](const auto& one) {
                           return std::string(one.param.kind == FailureDomain::Kind::local_nic
                                                  ? "LocalNic"
                                              : one.param.kind == FailureDomain::Kind::remote_nic
                                                  ? "RemoteNic"
                                                  : "HostInBetween");
                         });

TEST_F(LateFabric, ARouteReachesThePathAndIsItsFailureDomains) {
  connect();
  const std::array<fabric::Hop, 2> route{hop_of("relay-a"), hop_of("relay-b")};
  fabric::PathOptions options;
  options.route = route;
  RecordingOwner owner;
  const auto local = sim::Endpoint{sim::ip(10, 0, 0, 1), 0}.to_sockaddr();
  auto path =
      hosts_[0]->provider->create_path(hosts_[0]->engine->worker(0).context(), {0, late_kind},
                                       reinterpret_cast<const sockaddr*>(&local), options, &owner);
  ASSERT_TRUE(path) << path.error().message();
  EXPECT_EQ(path->path->traits().hops, 2U);
  fabric::FailureDomains domains;
  path->path->failure_domains(domains);
  const fabric::FailureDomains expected{{FailureDomain::Kind::local_nic, "sim0"},
                                        {FailureDomain::Kind::host, "relay-a"},
                                        {FailureDomain::Kind::host, "relay-b"}};
  EXPECT_EQ(domains, expected);
  path->reset();
}

TEST_F(LateFabric, APeerWithoutTheKindSaysSo) {
  add_hosts();
  Config other = config_;
  other.fabric = "datagram";
  auto third = world_.add_process({sim::ip(10, 0, 0, 3)}, other);
  ASSERT_TRUE(third) << third.error().message();
  const fabric::Provider& provider = *(*third)->provider;
  EXPECT_FALSE(provider.accepts(0, late_kind));
  EXPECT_EQ(provider.refusal(0, late_kind).find("the peer wants late paths, but sim0"), 0U);
  EXPECT_FALSE(provider.accepts(0, fabric::FabricKind{77}));
  EXPECT_NE(provider.refusal(0, fabric::FabricKind{77}).find("a fabric that is not known here"),
            std::string::npos);
  EXPECT_FALSE(hosts_[0]->provider->kind_towards(0, fabric::FabricKind{77}));
  ASSERT_TRUE(link_->wait_ready());
}

}  // namespace
}  // namespace nccl_ha::test
