// Discovery on workers of a simulation, and how interfaces are chosen for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "relay/discovery_actor.h"
#include "relay/mesh_client.h"
#include "relay/mesh_settings.h"
#include "relay/shape.h"
#include "tests/rig/sim/world.h"
#include "tests/support/sim_cables.h"

namespace nccl_ha::test {
namespace {

using relay::Shape;
using std::chrono::milliseconds;
using std::chrono::seconds;

class DiscoveryActors : public ::testing::Test {
 protected:
  static constexpr size_t hosts = 4;
  static constexpr size_t stands_in = 2;  ///< for a relay node; the others are of one
  std::unique_ptr<SimCables> cables_at_;  ///< links, which actors own, use it
  sim::World world_{1};
  SimCables& cables_ = *(cables_at_ = std::make_unique<SimCables>(world_.network(), hosts));
  DiscoveryActors() {
    for (size_t i = 0; i < hosts; ++i) {
      cables_.add_cable(i, (i + 1) % hosts);
    }
  }
  void SetUp() override {
    for (size_t i = 0; i < hosts; ++i) {
      auto process = world_.add_process(sim::ip(10, 0, 0, static_cast<uint8_t>(i + 1)), Config{});
      ASSERT_TRUE(process);
      relay::DiscoveryActor::Options options;
      options.identity.node = relay::NodeId{i + 1};
      options.identity.incarnation = static_cast<uint32_t>(i + 1);
      options.identity.name = "h" + std::to_string(i);
      options.links = cables_.links(i);
      options.interfaces = [this, i]() -> Result<std::vector<fabric::NetInterface>> {
        if (no_memory_) {
          ++lacked_;
          throw std::bad_alloc();
        }
        if (unlisted_) {
          ++not_listed_;
          return fail(Errc::system, "the interfaces cannot be listed", EMFILE);
        }
        return cables_.interfaces(i, seen_);
      };
      options.board = boards_[i];
      if (i == stands_in) {
        options.on_hand_over = [this] {
          ++asked_for_place_;
          return gives_place_;
        };
      }
      const auto actor = (*process)->engine->worker(0).adopt(
          std::make_unique<relay::DiscoveryActor>(std::move(options)));
      ASSERT_TRUE(actor);
      actors_.push_back(*actor);
      processes_.push_back(*process);
    }
  }
  bool all_see(Shape shape, Duration limit) {
    return world_.run_until(
        [&] {
          for (size_t i = 0; i < hosts; ++i) {
            const auto view = boards_[i]->read();
            if (!view || view->topology.nodes().size() != hosts ||
                relay::shape_of(view->topology, *view->topology.find(view->self)) != shape) {
              return false;
            }
          }
          return true;
        },
        limit);
  }
  int asked_for_place_ = 0;
  bool gives_place_ = true;
  bool seen_ = false;       ///< hosts see when a cable is cut
  bool no_memory_ = false;  ///< for a look
  size_t lacked_ = 0;
  bool unlisted_ = false;  ///< hosts cannot look at all
  size_t not_listed_ = 0;
  std::vector<std::shared_ptr<relay::TopologyBoard>> boards_ = [] {
    std::vector<std::shared_ptr<relay::TopologyBoard>> made(hosts);
    for (auto& board : made) {
      board = std::make_shared<relay::TopologyBoard>();
    }
    return made;
  }();
  std::vector<sim::Process*> processes_;
  std::vector<ActorId> actors_;
};

TEST_F(DiscoveryActors, PublishTheRingAndWhatBecomesOfIt) {
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
  EXPECT_EQ(boards_[0]->read()->neighbours.size(), 2U);
  cables_.cut(2);
  ASSERT_TRUE(all_see(Shape::line, seconds(3)));
  cables_.cut(2, false);
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
}

TEST_F(DiscoveryActors, AnInterfaceThatGoesTakesItsNeighbourAlong) {
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
  seen_ = true;
  cables_.cut(0);
  // Nobody tells of links here, so that it is seen at the next look, if silence is not first.
  ASSERT_TRUE(all_see(Shape::line, relay::DiscoveryActor::look_apart + milliseconds(500)));
}

TEST_F(DiscoveryActors, CablesThatCannotBeLookedAtAreStillThere) {
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
  unlisted_ = true;
  EXPECT_FALSE(world_.run_until([&] { return boards_[0]->read()->neighbours.size() != 2; },
                                2 * relay::DiscoveryActor::look_apart));
  EXPECT_GE(not_listed_, hosts);
  EXPECT_TRUE(all_see(Shape::ring, seconds(0)));
}

TEST_F(DiscoveryActors, GoOnAfterALookForWhichThereWasNoMemory) {
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
  no_memory_ = true;
  ASSERT_TRUE(world_.run_until([&] { return lacked_ == hosts; },
                               relay::DiscoveryActor::look_apart + seconds(1)));
  no_memory_ = false;
  EXPECT_FALSE(world_.run_until([&] { return boards_[0]->read()->neighbours.size() != 2; },
                                relay::DiscoveryActor::look_apart))
      << "nobody says hello any more";
  EXPECT_TRUE(all_see(Shape::ring, seconds(0)));
}

TEST_F(DiscoveryActors, PublishANeighbourThatSpeaksFromElsewhere) {
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
  const auto speaks_from = [&](uint8_t second) {
    const auto view = boards_[0]->read();
    return std::any_of(view->neighbours.begin(), view->neighbours.end(),
                       [&](const relay::Neighbour& one) {
                         IpAddress address;
                         address.bytes = {10, second, 0, 1};
                         fabric::SocketAddress expected;
                         expected.length = address.to_sockaddr(1, &expected.storage);
                         return one.node == relay::NodeId{2} && one.address == expected;
                       });
  };
  ASSERT_TRUE(speaks_from(0));
  const uint64_t revision = boards_[0]->read()->revision;
  cables_.move(1);
  EXPECT_TRUE(world_.run_until([&] { return speaks_from(1); }, seconds(3)));
  EXPECT_EQ(boards_[0]->read()->revision, revision) << "no host says anything new";
}

TEST_F(DiscoveryActors, TellOthersWhetherTheyRelay) {
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
  const auto relays = [&](size_t seen_by) {
    const relay::Topology& topology = boards_[seen_by]->read()->topology;
    return topology.nodes()[*topology.find(relay::NodeId{3})].relays;
  };
  ASSERT_TRUE(relays(0));
  for (const uint32_t on : {0U, 1U}) {
    processes_[2]->engine->worker(0).post({actors_[2], relay::DiscoveryActor::relays, on});
    EXPECT_TRUE(world_.run_until([&] { return relays(0) == (on != 0); }, milliseconds(500))) << on;
    EXPECT_TRUE(world_.run_until([&] { return relays(1) == (on != 0); }, milliseconds(500))) << on;
  }
}

TEST_F(DiscoveryActors, TellWhoAsksOnThisHostAndNobodyElse) {
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
  cables_.ask(1, encode(relay::DiscoveryPacket{relay::NodeId{77}, 1, relay::QueryPacket{}}));
  ASSERT_TRUE(world_.run_until([&] { return !cables_.answers().empty(); }, seconds(1)));
  ASSERT_EQ(cables_.answers().size(), 2U);
  relay::MeshAnswer answer;
  EXPECT_FALSE(answer.take(cables_.answers()[0])) << "one more packet follows";
  const auto view = answer.take(cables_.answers()[1]);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->self, relay::NodeId{2});
  EXPECT_EQ(view->topology.nodes().size(), hosts);
  EXPECT_EQ(view->topology.cable_count(), hosts);
  ASSERT_EQ(view->neighbours.size(), 2U);
  const auto& known = boards_[1]->read()->neighbours;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(view->neighbours[i].node, known[i].node);
    EXPECT_EQ(view->neighbours[i].interface, known[i].interface);
    EXPECT_EQ(text(view->neighbours[i].address), text(known[i].address));
  }
}

TEST_F(DiscoveryActors, AnswerEachAskerOnceInATurn) {
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
  const auto query = encode(relay::DiscoveryPacket{relay::NodeId{77}, 1, relay::QueryPacket{}});
  for (int i = 0; i < 10; ++i) {
    cables_.ask(1, query);
  }
  ASSERT_TRUE(world_.run_until([&] { return !cables_.answers().empty(); }, seconds(1)));
  world_.run_until([] { return false; }, milliseconds(100));
  EXPECT_EQ(cables_.answers().size(), 2U) << "one answer of two packets";
  cables_.ask(1, query);
  EXPECT_TRUE(world_.run_until([&] { return cables_.answers().size() == 4; }, seconds(1)));
}

TEST_F(DiscoveryActors, ANodeThatBeginsGetsAPlaceThatIsHeldForOneAndNoOther) {
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
  const auto wish = encode(relay::DiscoveryPacket{relay::NodeId{77}, 1, relay::HandOverPacket{}});
  const auto query = encode(relay::DiscoveryPacket{relay::NodeId{77}, 1, relay::QueryPacket{}});
  for (const size_t host : {size_t{1}, stands_in}) {
    cables_.ask(host, wish);
    cables_.ask(host, wish);
    cables_.ask(host, query);
  }
  ASSERT_TRUE(world_.run_until([&] { return asked_for_place_ > 0; }, seconds(1)));
  world_.run_until([] { return false; }, milliseconds(100));
  EXPECT_EQ(asked_for_place_, 1);
  EXPECT_EQ(cables_.answers().size(), 2U) << "the node answers, whoever leaves does not";
  processes_[stands_in]->engine->worker(0).post({actors_[stands_in], relay::DiscoveryActor::leave});
  EXPECT_TRUE(world_.run_until([&] { return boards_[1]->read()->neighbours.size() == 1; },
                               milliseconds(500)))
      << "its neighbours are told";
}

TEST_F(DiscoveryActors, WhoeverCannotGiveItsPlaceYetIsAskedAgain) {
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
  const auto wish = encode(relay::DiscoveryPacket{relay::NodeId{77}, 1, relay::HandOverPacket{}});
  gives_place_ = false;
  cables_.ask(stands_in, wish);
  cables_.ask(stands_in, wish);
  cables_.ask(stands_in,
              encode(relay::DiscoveryPacket{relay::NodeId{77}, 1, relay::QueryPacket{}}));
  ASSERT_TRUE(world_.run_until([&] { return !cables_.answers().empty(); }, seconds(1)))
      << "it still answers";
  EXPECT_EQ(asked_for_place_, 2);
}

TEST_F(DiscoveryActors, AnAnswerOfWhichAPartIsLostIsNone) {
  ASSERT_TRUE(all_see(Shape::ring, seconds(2)));
  cables_.ask(1, encode(relay::DiscoveryPacket{relay::NodeId{77}, 1, relay::QueryPacket{}}));
  ASSERT_TRUE(world_.run_until([&] { return !cables_.answers().empty(); }, seconds(1)));
  ASSERT_EQ(cables_.answers().size(), 2U);
  relay::MeshAnswer answer;
  EXPECT_FALSE(answer.take(cables_.answers()[1])) << "its beginning is lost";
  EXPECT_FALSE(answer.take(cables_.answers()[0]));
  EXPECT_FALSE(answer.take(cables_.answers()[0])) << "its end is lost, and another one begins";
  EXPECT_TRUE(answer.take(cables_.answers()[1]));
  EXPECT_FALSE(answer.take(cables_.answers()[1])) << "more than there should be";
  EXPECT_FALSE(answer.take({}));
}

TEST(MeshInterfaces, SlowOnesAreForManagement) {
  std::vector<fabric::NetInterface> all(4);
  const char* names[] = {"lo", "eth0", "mesh0", "mesh1"};
  const int64_t speeds[] = {0, 10000, 100000, 200000};
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].name = names[i];
    all[i].ifindex = static_cast<int>(i + 1);
    all[i].speed_mbps = speeds[i];
    all[i].up = true;
    all[i].loopback = i == 0;
    all[i].addresses.resize(1);
    all[i].addresses[0].bytes = {10, 0, 0, static_cast<uint8_t>(i)};
  }
  const auto chosen = [&](const char* spec) {
    std::string found;
    for (const auto& one : relay::select_mesh_interfaces(all, spec)) {
      found += one.name + " ";
    }
    return found;
  };
  EXPECT_EQ(chosen(""), "mesh0 mesh1 ");
  EXPECT_EQ(chosen("eth"), "eth0 ") << "whoever names it wants it";
  EXPECT_EQ(chosen("=none"), "");
  all[2].up = false;
  EXPECT_EQ(chosen(""), "mesh1 ");
}

TEST(MeshSettings, ANeighbourMayLoseOneHello) {
  Config config;
  EXPECT_TRUE(relay::discovery_timing(config));
  config.mesh_dead_ms = 2 * config.mesh_hello_ms - 1;
  const auto refused = relay::discovery_timing(config);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("HA_NCCL_MESH_DEAD_MS=999"), std::string::npos);
}

}  // namespace
}  // namespace nccl_ha::test
