#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/process.h"
#include "runtime/base/secret.h"
#include "tests/support/ports.h"

namespace nccl_ha::plugin {
namespace {

fabric::NetInterface interface(const char* name, int ifindex, uint8_t network) {
  fabric::NetInterface made;
  made.name = name;
  made.ifindex = ifindex;
  IpAddress address;
  address.prefix_len = 24;
  address.bytes = {10, network, 0, 1};
  made.addresses = {address};
  made.mac = {2, 0, 0, 0, 0, network};
  made.guid = network;
  made.up = true;
  return made;
}

/// UDP; of this moment.
uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const uint16_t port = test::bind_to_meet(fd);
  close(fd);
  return port;
}

/// Two cables and a management network.
class MeshHost final : public Host {
 public:
  Result<Config> settings(std::vector<std::string>*) override { return config; }
  Result<std::vector<fabric::NetInterface>> interfaces() override { return all; }
  Result<std::unique_ptr<fabric::Provider>> make_provider(
      const Config& settings, const std::vector<fabric::NetInterface>& interfaces,
      std::vector<fabric::Provider::Kind> kinds) override {
    return fabric::Provider::make(settings, interfaces, 1, {{}, std::move(kinds)});
  }
  Result<std::unique_ptr<Engine>> start_engine(const Config& settings) override {
    return starts ? Engine::start(settings) : fail(Errc::system, "nothing moves");
  }
  Instant now() override { return time; }
  SecretSource& secrets() override { return kernel_secrets(); }

  Config config;
  Instant time{};
  bool starts = false;
  std::vector<fabric::NetInterface> all{interface("cable0", 2, 1), interface("cable1", 3, 2),
                                        interface("mgmt0", 4, 3)};
};

TEST(ProcessInAMesh, CablesStayInUseWhenTheKernelTellsOfAChange) {
  MeshHost host;
  host.config.fabric = "datagram";
  host.config.mesh_relay = "inline";
  host.config.mesh_port = free_port();
  host.config.mesh_ifname = "=cable0,cable1";
  host.config.ifname = "mgmt0";
  Process process(host);
  const auto ready = process.initialize(nullptr, 0);
  ASSERT_TRUE(ready) << ready.error().message();
  const auto in_use = [&] {
    std::vector<std::string> names;
    for (const fabric::NetInterface& one : *process.provider().interfaces()) {
      names.push_back(one.name + (one.up ? "" : " down"));
    }
    std::ranges::sort(names);
    return names;
  };
  const std::vector<std::string> cables{"cable0", "cable1"};
  ASSERT_EQ(in_use(), cables);
  process.provider().renew_interfaces(host.all);
  EXPECT_EQ(in_use(), cables);
  host.all[0].up = false;
  process.provider().renew_interfaces(host.all);
  EXPECT_EQ(in_use(), (std::vector<std::string>{"cable0 down", "cable1"}));
  process.shut_down();
}

/// NCCL keeps the number of devices while the library is loaded, also from one communicator to a
/// later one: what is not there then is a device whose network is away.
TEST(ProcessWithoutACommunicator, ListsTheSameDevicesForTheNextOne) {
  MeshHost host;
  host.config.fabric = "datagram";
  Process process(host);
  ASSERT_TRUE(process.initialize(nullptr, 0));
  ASSERT_EQ(process.device_count(), 3U);
  const auto all = host.all;
  process.remove_context();
  host.all.erase(host.all.begin());
  ASSERT_TRUE(process.initialize(nullptr, 0));
  EXPECT_EQ(process.device_count(), 3U);
  EXPECT_EQ(process.devices().find(0)->name, all[0].name);
  process.remove_context();
  host.all.clear();
  ASSERT_TRUE(process.initialize(nullptr, 0));
  EXPECT_EQ(process.device_count(), 3U);
  process.remove_context();
  host.all = all;
  host.config.rto_ms = 777;
  ASSERT_TRUE(process.initialize(nullptr, 0));
  EXPECT_EQ(process.config().rto_ms, 777) << "what can be read anew is";
  process.shut_down();
  host.all.erase(host.all.begin());
  ASSERT_TRUE(process.initialize(nullptr, 0));
  EXPECT_EQ(process.device_count(), 2U) << "the library was loaded anew";
}

/// What was read for the list that was not taken leaves no trace.
TEST(ProcessWithoutACommunicator, ControlConnectionsBeginWhereTheyDidBefore) {
  MeshHost host;
  host.config.fabric = "datagram";
  host.config.mpib_oob_if = "mgmt0";
  Process process(host);
  ASSERT_TRUE(process.initialize(nullptr, 0));
  const auto begins_at = [&] {
    const size_t at = process.control_interface(process.provider().devices()[0]);
    return (*process.interfaces()).at(at).name;
  };
  ASSERT_EQ(begins_at(), "mgmt0");
  process.remove_context();
  host.all.erase(host.all.begin());
  ASSERT_TRUE(process.initialize(nullptr, 0));
  EXPECT_EQ(process.device_count(), 3U);
  EXPECT_EQ(begins_at(), "mgmt0");
}

/// NCCL before 2.28 in the same process says no end of its own.
TEST(ProcessOfTwoNccls, IsNotStoppedByTheLastContextOfOne) {
  MeshHost host;
  host.config.fabric = "datagram";
  host.starts = true;
  Process process(host);
  ASSERT_TRUE(process.initialize(nullptr, 0));
  ASSERT_TRUE(process.initialize(nullptr, 0));
  ASSERT_TRUE(process.open());
  process.remove_context();
  EXPECT_NE(process.generation(), 0U);
  process.remove_context();
  EXPECT_EQ(process.generation(), 0U);
}

/// Whose program asks no more: NCCL has nothing that it could close.
class ProcessWithConnects : public testing::Test {
 protected:
  void SetUp() override {
    host_.config.fabric = "datagram";
    host_.starts = true;
    host_.time = Instant(std::chrono::hours(1));
    ASSERT_TRUE(process_.initialize(nullptr, 0));
  }
  void TearDown() override { process_.shut_down(); }
  /// The number of one more, and what is kept of it.
  std::pair<uint64_t, std::weak_ptr<SendEndpoint>> add() {
    auto engine = process_.open();
    EXPECT_TRUE(engine);
    auto endpoint =
        std::make_shared<SendEndpoint>(process_.next_domain(), fabric::Attachment{},
                                       (*engine)->worker(0), **engine, fabric::RailDevices{});
    const std::weak_ptr<SendEndpoint> kept = endpoint;
    return {process_.add_pending(std::move(endpoint)), kept};
  }
  static void end(const std::weak_ptr<SendEndpoint>& kept) {
    kept.lock()->channel.set_failed(fail(Errc::timed_out, "nobody answers"));
  }
  void pass(int64_t ms) { host_.time += std::chrono::milliseconds(ms); }

  MeshHost host_;
  Process process_{host_};
};

TEST_F(ProcessWithConnects, KeepsNoneThatHasFailedAndThatNobodyAsksFor) {
  const auto [abandoned, of_abandoned] = add();
  const auto [asked, of_asked] = add();
  const auto [under_way, of_under_way] = add();
  end(of_abandoned);
  end(of_asked);
  pass(host_.config.connect_timeout_ms - 1);
  EXPECT_NE(process_.find_pending(asked), nullptr);
  static_cast<void>(add());
  EXPECT_FALSE(of_abandoned.expired()) << "its caller may just have been held up";
  pass(1);
  static_cast<void>(add());
  EXPECT_TRUE(of_abandoned.expired());
  EXPECT_EQ(process_.find_pending(abandoned), nullptr);
  EXPECT_NE(process_.find_pending(asked), nullptr);
  EXPECT_NE(process_.find_pending(under_way), nullptr);
}

/// Who still asks for one may do so when the process ends.
TEST_F(ProcessWithConnects, KeepsItsDevicesAtTheEndForThoseThatAreAskedForAlone) {
  for (const bool abandoned : {false, true}) {
    ASSERT_TRUE(process_.initialize(nullptr, 0));
    const auto [number, kept] = add();
    end(kept);
    pass(host_.config.connect_timeout_ms);
    EXPECT_TRUE(abandoned || process_.find_pending(number) != nullptr);
    process_.shut_down();
    EXPECT_EQ(process_.device_count() == 0, abandoned);
  }
}

}  // namespace
}  // namespace nccl_ha::plugin
