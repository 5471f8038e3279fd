#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <utility>

#include "relay/discovery.h"
#include "relay/link_sockets.h"
#include "relay/mesh_client.h"
#include "relay/process_mesh.h"
#include "relay/ticket_office.h"
#include "runtime/engine/engine.h"
#include "runtime/fabric/provider.h"
#include "tests/support/log_lines.h"
#include "tests/support/ports.h"
#include "tests/support/until.h"

namespace nccl_ha::relay {
namespace {

using Part = ProcessMesh::Part;
using Reach = ProcessMesh::Reach;
using std::chrono::milliseconds;

/// A UDP port that somebody has.
class TakenPort {
 public:
  TakenPort()
      : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)), port_(test::bind_to_meet(fd_)) {}
  ~TakenPort() { release(); }
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;
  void release() {
    if (fd_ >= 0) {
      close(std::exchange(fd_, -1));
    }
  }
  uint16_t port() const { return port_; }

 private:
  int fd_;
  uint16_t port_;
};

class ProcessMeshTest : public testing::Test {
 protected:
  ProcessMeshTest() {
    TakenPort free;
    config_.mesh_port = free.port();
    fabric::NetInterface one;
    one.name = "cable0";
    one.ifindex = 7;
    one.up = true;
    one.addresses = {address(1, 1)};
    all_.push_back(one);
  }
  /// 10.0.NET.HOST
  static IpAddress address(uint8_t net, uint8_t host) {
    IpAddress made;
    made.prefix_len = 24;
    made.bytes = {10, 0, net, host};
    return made;
  }
  Result<std::unique_ptr<ProcessMesh>> make() { return ProcessMesh::make(config_, all_, job_); }
  Part part() {
    auto made = make();
    EXPECT_TRUE(made) << made.error().message();
    return made ? (*made)->part() : Part::none;
  }
  Config config_;
  std::vector<fabric::NetInterface> all_;
  std::shared_ptr<JobKeys> job_ = std::make_shared<JobKeys>();
};

TEST_F(ProcessMeshTest, TakesPartWhereItIsAskedTo) {
  EXPECT_EQ(part(), Part::none) << "nobody relays on this host, and there is no communicator";
  job_->add(4711);
  EXPECT_EQ(part(), Part::inlined);
  fabric::NetInterface lo;
  lo.name = "lo";
  lo.ifindex = 1;
  lo.up = true;
  lo.loopback = true;
  lo.addresses = {*parse_addresses("127.0.0.1")->begin()};
  all_.push_back(lo);
  config_.ifname = "lo";
  EXPECT_EQ(part(), Part::none) << "the job stays on this host";
  config_.ifname = "";
  all_.pop_back();
  config_.mesh_relay = "inline";
  EXPECT_EQ(part(), Part::inlined);
  config_.fabric = "verbs";
  EXPECT_EQ(part(), Part::none) << "nothing else is to be used";
  config_.fabric = "auto";
  config_.mesh_enable_relay = false;
  EXPECT_EQ(part(), Part::none);
  config_.mesh_enable_relay = true;
  config_.mesh_relay = "off";
  EXPECT_EQ(part(), Part::none);
  config_.mesh_relay = "inline";
  config_.mesh_ifname = "=other";
  EXPECT_EQ(part(), Part::none) << "there are no cables";
}

TEST_F(ProcessMeshTest, AWrongSettingIsNamed) {
  config_.mesh_relay = "outline";
  auto made = make();
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().what, "HA_NCCL_MESH_RELAY=outline: use auto, inline or off");
  config_.mesh_relay = "inline";
  config_.mesh_peers = "here";
  EXPECT_FALSE(make());
  config_.mesh_peers = "";
  config_.mesh_dead_ms = 1;
  EXPECT_FALSE(make());
  config_.mesh_dead_ms = 2000;
  config_.mesh_topology = "circle";
  EXPECT_FALSE(make());
}

TEST_F(ProcessMeshTest, AnotherShapeThanIsExpectedIsToldOnce) {
  const std::string file = testing::TempDir() + "nha_shape_" + std::to_string(getpid());
  std::ofstream(file) << "node a 10.0.1.1/24\nnode b 10.0.1.2/24 10.0.2.2/24\n"
                         "node c 10.0.2.3/24\ncable a b\ncable b c\n";
  config_.mesh_topology_file = file;
  config_.progress_threads = 1;
  for (const char* expected : {"line", "ring"}) {
    const test::LogLines log;
    config_.mesh_topology = expected;
    auto mesh = make();
    ASSERT_TRUE(mesh) << mesh.error().message();
    auto provider = fabric::Provider::make(config_, {}, 1, {{}, (*mesh)->kinds()});
    ASSERT_TRUE(provider) << provider.error().message();
    auto engine = Engine::start(config_);
    ASSERT_TRUE(engine) << engine.error().message();
    ASSERT_TRUE((*mesh)->begin(**engine, **provider, SteadyClock().now()));
    // Nobody has to ask for a peer.
    const bool other = std::string_view(expected) == "ring";
    EXPECT_EQ(test::until([&] { return log.count("HA_NCCL_MESH_TOPOLOGY expects") != 0; },
                          other ? std::chrono::seconds(20) : std::chrono::seconds(1)),
              other);
    EXPECT_EQ(log.count("HA_NCCL_MESH_TOPOLOGY expects a ring, but 3 hosts make a line"),
              other ? 1U : 0U);
    EXPECT_EQ(log.count("HA_NCCL_MESH_TOPOLOGY expects"), other ? 1U : 0U);
    (*mesh)->leave(**engine, std::chrono::seconds(60));
  }
  std::filesystem::remove(file);
}

TEST_F(ProcessMeshTest, WhoeverHasThePortIsAskedOnlyWhereThatIsNeeded) {
  TakenPort taken;
  config_.mesh_port = taken.port();
  for (const char* how : {"inline", "auto"}) {
    config_.mesh_relay = how;
    EXPECT_EQ(part(), Part::attached) << "another process of the job, which will answer";
  }
  auto mesh = make();
  ASSERT_TRUE(mesh);
  EXPECT_TRUE((*mesh)->automatic());
  EXPECT_FALSE((*mesh)->in_mesh());
  const Instant later = SteadyClock().now();
  EXPECT_EQ((*mesh)->reach({address(1, 1)}, Instant{}), Reach::cable) << "this host";
  EXPECT_EQ((*mesh)->reach({address(1, 2)}, Instant{}), Reach::unknown) << "it may have answered";
  EXPECT_EQ((*mesh)->reach({address(1, 2)}, later), Reach::cable) << "it need not";
  EXPECT_EQ((*mesh)->reach({address(9, 9)}, later), Reach::unknown) << "no address leads there";
  EXPECT_TRUE((*mesh)->out_of_reach({address(9, 9)}));
  const std::string why = (*mesh)->why_no_way({address(9, 9)});
  for (const char* part : {"10.0.9.9", "10.0.1.1/24 (cable0)", "does not tell what it knows",
                           "nccl-ha relay", "HA_NCCL_MESH_RELAY"}) {
    EXPECT_NE(why.find(part), std::string::npos) << why;
  }
  // Each connection waits for the same search.
  const Duration first = (*mesh)->patience({address(9, 9)}, SteadyClock().now());
  EXPECT_LE(first, std::chrono::seconds(10));
  EXPECT_EQ((*mesh)->patience({address(9, 9)}, SteadyClock().now() + std::chrono::seconds(11)),
            Duration(0));
}

TEST_F(ProcessMeshTest, WithoutAPartEverybodyIsReachedAsBefore) {
  auto mesh = make();
  ASSERT_TRUE(mesh);
  EXPECT_TRUE((*mesh)->kinds().empty());
  EXPECT_EQ((*mesh)->reach({address(9, 9)}, Instant{}), Reach::cable);
}

TEST_F(ProcessMeshTest, ATopologyFileTellsTheWays) {
  const std::string file = testing::TempDir() + "nha_topology_" + std::to_string(getpid());
  std::ofstream(file) << "node a 10.0.1.1/24\nnode b 10.0.1.2/24 10.0.2.2/24\n"
                         "node c 10.0.2.3/24\ncable a b\ncable b c\n";
  config_.mesh_topology_file = file;
  auto mesh = make();
  ASSERT_TRUE(mesh) << mesh.error().message();
  EXPECT_EQ((*mesh)->part(), Part::inlined);
  EXPECT_NE((*mesh)->why_no_way({}).find("discovery knows b, c;"), std::string::npos)
      << (*mesh)->why_no_way({});
  const Instant later = Instant{} + std::chrono::hours(1);
  EXPECT_EQ((*mesh)->reach({address(1, 2)}, later), Reach::cable);
  EXPECT_EQ((*mesh)->reach({address(2, 3)}, later), Reach::relays);
  EXPECT_EQ((*mesh)->reach({address(7, 7)}, later), Reach::unknown);
  EXPECT_EQ((*mesh)->kinds().size(), 1U);
  // One that looks near is waited for less long, as there may be a cable that nobody has heard of.
  EXPECT_EQ((*mesh)->patience({address(1, 9)}, later), milliseconds(2 * config_.mesh_hello_ms));
  EXPECT_GT((*mesh)->patience({address(7, 7)}, later), milliseconds(2 * config_.mesh_hello_ms));
  all_[0].addresses = {address(3, 3)};
  EXPECT_FALSE(make()) << "this host is not in it";
  std::filesystem::remove(file);
  EXPECT_FALSE(make());
}

TEST_F(ProcessMeshTest, WithoutPathsOfOthersItLeavesAtOnce) {
  config_.mesh_relay = "inline";
  config_.progress_threads = 1;
  auto mesh = make();
  ASSERT_TRUE(mesh) << mesh.error().message();
  auto provider = fabric::Provider::make(config_, {}, 1, {{}, (*mesh)->kinds()});
  ASSERT_TRUE(provider) << provider.error().message();
  SteadyClock clock;
  for (int life = 0; life < 2; ++life) {
    auto engine = Engine::start(config_);
    ASSERT_TRUE(engine) << engine.error().message();
    ASSERT_TRUE((*mesh)->begin(**engine, **provider, clock.now()));
    const Instant before = clock.now();
    (*mesh)->leave(**engine, std::chrono::seconds(60));
    (*mesh)->leave(**engine, std::chrono::seconds(60));
    EXPECT_LT(clock.now() - before, std::chrono::seconds(20));
  }
}

/// Within ten seconds.
bool comes_true(const std::function<bool()>& condition) {
  SteadyClock clock;
  for (const Instant end = clock.now() + std::chrono::seconds(10); clock.now() < end;) {
    if (condition()) {
      return true;
    }
    sched_yield();
  }
  return false;
}

/// The sockets of a relay node that has begun; nullptr: the port is not given up.
std::unique_ptr<LinkSockets> take_place(uint16_t port) {
  std::unique_ptr<LinkSockets> taken;
  comes_true([&] {
    ask_for_place(port);
    LinkSockets::Options options;
    options.port = port;
    auto links = LinkSockets::open(options, nullptr);
    taken = links ? std::move(*links) : nullptr;
    return taken != nullptr;
  });
  return taken;
}

TEST_F(ProcessMeshTest, GivesItsPlaceToARelayNodeThatBeginsAndTakesItAgainWhenThatIsGone) {
  const test::LogLines log;
  config_.mesh_relay = "inline";
  config_.progress_threads = 1;
  config_.mesh_hello_ms = 20;
  config_.mesh_dead_ms = 60;
  auto mesh = make();
  ASSERT_TRUE(mesh) << mesh.error().message();
  auto provider = fabric::Provider::make(config_, {}, 1, {{}, (*mesh)->kinds()});
  ASSERT_TRUE(provider) << provider.error().message();
  SteadyClock clock;
  auto engine = Engine::start(config_);
  ASSERT_TRUE(engine) << engine.error().message();
  ASSERT_TRUE((*mesh)->begin(**engine, **provider, clock.now()));
  const auto port = static_cast<uint16_t>(config_.mesh_port);
  for (size_t life = 1; life <= 2; ++life) {
    ASSERT_TRUE(comes_true([&] { return ask_relay_node(port, milliseconds(100)).ok(); }))
        << "this process relays";
    const auto node = take_place(port);
    ASSERT_TRUE(node);
    // A test that stands still for long is taken for a node that is gone again.
    const size_t begun = log.count("a relay node begins on this host: this process relays no more");
    EXPECT_GE(begun, life);
    EXPECT_EQ(log.count("the relay node of this host is gone"), begun - 1);
    pollfd asked{node->wait_fds()[1], POLLIN, 0};  // IPv4's
    EXPECT_EQ(poll(&asked, 1, 10000), 1) << "the process asks the node";
  }
  (*mesh)->leave(**engine, std::chrono::seconds(60));
}

TEST_F(ProcessMeshTest, WithATicketInPlaceOfTheKeyItDoesNotTakeTheNodesPlace) {
  const test::LogLines log;
  config_.mesh_relay = "inline";
  config_.progress_threads = 1;
  config_.mesh_hello_ms = 20;
  config_.mesh_dead_ms = 60;
  LinkSockets::Options options;
  options.port = static_cast<uint16_t>(config_.mesh_port);
  auto node = LinkSockets::open(options, nullptr);
  ASSERT_TRUE(node);
  KeyRing keys;
  keys.add(1, HashKey{});
  auto nodes_engine = Engine::start(config_);
  ASSERT_TRUE(nodes_engine);
  ASSERT_TRUE((*nodes_engine)
                  ->worker(0)
                  .adopt(std::make_unique<TicketOffice>(TicketOffice::Options{
                      options.port, NodeId{7}, 5, std::make_shared<KeyFile>(keys)})));
  TicketAsker asker(options.port, kernel_secrets());
  ASSERT_TRUE(comes_true([&] { return asker.wait(milliseconds(100)).has_value(); }));

  auto mesh = make();
  ASSERT_TRUE(mesh) << mesh.error().message();
  EXPECT_EQ((*mesh)->part(), Part::attached);
  auto provider = fabric::Provider::make(config_, {}, 1, {{}, (*mesh)->kinds()});
  ASSERT_TRUE(provider) << provider.error().message();
  SteadyClock clock;
  auto engine = Engine::start(config_);
  ASSERT_TRUE(engine) << engine.error().message();
  ASSERT_TRUE((*mesh)->begin(**engine, **provider, clock.now()));
  node->reset();
  EXPECT_TRUE(comes_true([&] { return log.count("it waits for the node") != 0; }));
  EXPECT_TRUE(LinkSockets::open(options, nullptr)) << "the port is the node's";
  EXPECT_EQ(log.count("this process relays from now on"), 0U);
  (*mesh)->leave(**engine, std::chrono::seconds(60));
}

TEST(MeshAnswer, OfMoreHostsThanThereCanBeIsNone) {
  const auto answer_of = [](size_t hosts) {
    MeshAnswer answer;
    NeighboursPacket first;
    first.states = static_cast<uint32_t>(hosts);
    EXPECT_FALSE(answer.take(encode(DiscoveryPacket{NodeId{1}, 1, first})));
    std::shared_ptr<const MeshView> view;
    for (size_t i = 0; i < hosts && !view; ++i) {
      StatesPacket one;
      one.states.emplace_back().origin = NodeId{i + 1};
      one.states.back().sequence = 1;
      one.states.back().lifetime_ms = 1000;
      view = answer.take(encode(DiscoveryPacket{NodeId{1}, 1, one}));
    }
    return view;
  };
  EXPECT_TRUE(answer_of(Discovery::nodes_max));
  EXPECT_FALSE(answer_of(Discovery::nodes_max + 1));
}

TEST(MeshAnswer, NobodyAtThePortIsKnownAtOnce) {
  TakenPort taken;
  taken.release();
  SteadyClock clock;
  const Instant before = clock.now();
  EXPECT_FALSE(ask_relay_node(taken.port(), std::chrono::seconds(30)));
  EXPECT_LT(clock.now() - before, std::chrono::seconds(10));
}

}  // namespace
}  // namespace nccl_ha::relay
